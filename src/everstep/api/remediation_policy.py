"""RemediationPolicy: what the platform team allows. One per cluster, named ``default``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from everstep.api.schema import doc, map_of
from everstep.core.cluster_state import OPT_OUT_LABEL
from everstep.core.health import FaultClass
from everstep.core.slurm_conf import KILL_WAIT_SECONDS


class Mode(StrEnum):
    DRY_RUN = "DryRun"
    ENFORCE = "Enforce"


class ActionName(StrEnum):
    REPLACE = "Replace"
    NONE = "None"


class Rule(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is done about critical faults of one class."""

    fault_class: Annotated[FaultClass, doc("Class of the fault.")]
    action: Annotated[ActionName, doc("Replace: a spare takes the node's place. None: it is only reported.")]


def _default_rules() -> list[Rule]:
    return [Rule(FaultClass.HARDWARE, ActionName.REPLACE), Rule(FaultClass.FABRIC, ActionName.REPLACE)]


class Budget(msgspec.Struct, rename="camel", omit_defaults=True):
    """How much may be out of service at the same time because of Everstep."""

    max_concurrent: Annotated[int, doc("Nodes at the same time.", minimum=1)] = 1


class Breaker(msgspec.Struct, rename="camel", omit_defaults=True):
    """Stops new isolations (never a recovery under way) when too much happens at once."""

    max_starts: Annotated[int, doc("Heals that may start within the window.", minimum=1)] = 10
    max_escalations: Annotated[int, doc("Heals that may end with a call to a person within the window.", minimum=1)] = 3
    window_seconds: Annotated[int, doc("Length of the window in seconds.", minimum=1)] = 3600


def _default_opt_out() -> list[str]:
    # Ours first; then what Karpenter, the cluster autoscaler and medik8s already honour on the same pods and nodes.
    return [
        f"{OPT_OUT_LABEL}=true",
        "karpenter.sh/do-not-disrupt=true",
        "cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        "remediation.medik8s.io/exclude-from-remediation",
    ]


class OptOut(msgspec.Struct, rename="camel", omit_defaults=True):
    """What forbids the replacement of a node; its jobs are brought back elsewhere all the same."""

    keys: Annotated[
        list[str], doc("Labels or annotations of the node or one of its pods: key=value, or key alone for any value.")
    ] = msgspec.field(default_factory=_default_opt_out)


class Deadlines(msgspec.Struct, rename="camel", omit_defaults=True):
    """How long each part may take before a person is called. Nothing waits for ever."""

    isolate_seconds: Annotated[int, doc("Seconds to take the node out of service in Slurm.", minimum=1)] = 600
    vacate_seconds: Annotated[int, doc("Seconds for the pods to leave the node.", minimum=1)] = 600
    validate_seconds: Annotated[int, doc("Seconds for one spare to pass its checks and serve.", minimum=1)] = 300
    spare_seconds: Annotated[int, doc("Seconds to wait for a spare to exist.", minimum=1)] = 86_400
    retire_seconds: Annotated[int, doc("Seconds for the provider to take the faulty machine.", minimum=1)] = 900
    resume_seconds: Annotated[int, doc("Seconds from the replacement to the job's first new step.", minimum=1)] = 1_800


class Fleet(msgspec.Struct, rename="camel", omit_defaults=True):
    """How many nodes make one incident of the fleet (FleetIncident), which is not answered by replacing them."""

    job_nodes: Annotated[
        int, doc("Nodes of one job with one code of a program at one moment: the job's own fault.", minimum=2)
    ] = 2
    job_percent: Annotated[int, doc("And this share of all nodes of the job, in percent.", minimum=1, maximum=100)] = 50
    mount_nodes: Annotated[int, doc("Nodes that lose one file server: one storage incident.", minimum=2)] = 3
    common_nodes: Annotated[
        int,
        doc(
            "Nodes with one hardware code within a minute: a common cause. The first is healed, the others wait for a "
            "person, who lets them go on by a higher number.",
            minimum=2,
        ),
    ] = 4


class DrainRule(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is done about a node that somebody else drained in Slurm."""

    reason: Annotated[
        str,
        doc(
            "Regular expression (Python's) that is looked for anywhere in the drain's reason.",
            minLength=1,
            maxLength=256,
        ),
    ]
    action: Annotated[
        ActionName,
        doc("Replace: its jobs are stopped and brought back, and a spare takes its place. None: it is noted."),
    ] = ActionName.NONE


class ConditionRule(msgspec.Struct, rename="camel", omit_defaults=True):
    """A condition of nodes, written by somebody else (node-problem-detector, a vendor's agent), that is evidence."""

    type: Annotated[str, doc("Type of the condition, for example KernelDeadlock.", minLength=1, maxLength=316)]
    status: Annotated[str, doc("The status that means trouble.", enum=["True", "False", "Unknown"])]
    fault_class: Annotated[FaultClass, doc("Who is to blame.")] = msgspec.field(
        name="class", default=FaultClass.HARDWARE
    )
    action: Annotated[
        ActionName,
        doc("Replace: a spare takes the node's place. None: EverstepHealthy shows it, and a spare is not used."),
    ] = ActionName.NONE
    for_seconds: Annotated[
        int, doc("Seconds for which it must have stood: checks of others flap.", minimum=0, maximum=86_400)
    ] = 60


class RemediationPolicySpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """What may be done about a broken node, and how much of it at once."""

    mode: Annotated[Mode, doc("DryRun: write down what would be done and touch nothing. Enforce: do it.")] = (
        Mode.DRY_RUN
    )
    actions: Annotated[
        list[Rule], map_of("What is done, by class of fault; a class not named is only reported.", "faultClass")
    ] = msgspec.field(default_factory=_default_rules)
    grace_seconds: Annotated[
        int,
        # Less than Slurm gives would cut a job off that is still saving.
        doc(
            "Seconds that a job may take to save after SIGTERM; must equal Slurm's KillWait.",
            minimum=KILL_WAIT_SECONDS,
            maximum=3600,
        ),
    ] = KILL_WAIT_SECONDS
    node_lost_seconds: Annotated[
        int, doc("Seconds of the agent's silence after which a node that is not Ready counts as lost.", minimum=20)
    ] = 30
    max_spares: Annotated[int, doc("Spares to try before a person is called.", minimum=1)] = 3
    budget: Annotated[Budget, doc("How much may be out of service at once.")] = msgspec.field(default_factory=Budget)
    breaker: Annotated[Breaker, doc("When to stop isolating nodes.")] = msgspec.field(default_factory=Breaker)
    opt_out: Annotated[OptOut, doc("What forbids a replacement.")] = msgspec.field(default_factory=OptOut)
    fleet: Annotated[Fleet, doc("When many nodes share one cause.")] = msgspec.field(default_factory=Fleet)
    slurm_drains: Annotated[
        list[DrainRule],
        doc(
            "Drains in Slurm that are not Everstep's: the first rule that matches decides. Without one: noted only.",
            maxItems=64,
        ),
    ] = []
    node_conditions: Annotated[
        list[ConditionRule],
        map_of("Conditions of nodes, written by others, that are evidence.", "type", "status", maxItems=64),
    ] = []
    deadlines: Annotated[Deadlines, doc("How long each part may take.")] = msgspec.field(default_factory=Deadlines)
