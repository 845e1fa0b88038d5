"""What the platform team allows: the RemediationPolicy as the rules read it. Numbers are seconds unless named."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from everstep.core.cluster_state import OPT_OUT_LABEL
from everstep.core.correlation.fleet import FleetRules
from everstep.core.health import FaultClass


class Mode(StrEnum):
    ENFORCE = "enforce"
    DRY_RUN = "dryRun"


@dataclass(frozen=True, slots=True)
class DrainRule:
    """What is done about a node that somebody else drained in Slurm, for a reason in which ``pattern`` is found."""

    pattern: str
    replace: bool


@dataclass(frozen=True, slots=True)
class ConditionRule:
    """A condition of nodes, written by somebody else, that is evidence.

    Attributes:
        status: the status that means trouble: ``True``, ``False`` or ``Unknown``.
        seconds: for which it must have stood; others' checks flap.
    """

    type: str
    status: str
    fault_class: FaultClass
    replace: bool
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Policy:
    """One RemediationPolicy.

    Attributes:
        mode: ``dryRun`` writes down what would be done and touches nothing.
        replace: fault classes whose critical faults get the node replaced.
        opt_out: ``key=value`` (or ``key``: any value) labels on a pod or node that forbid its replacement.
        budget: nodes that may be out of service at the same time because of us.
        breaker_starts, breaker_window: no new isolation after this many within the window.
        breaker_escalations: no new isolation after this many escalations within the window.
        node_lost_grace: silence of the agent after which a node that is not Ready counts as lost; three
            renewals of its Lease (10 s each).
        grace: what a job may take to save after SIGTERM; equals Slurm's KillWait.
        grace_margin: added to ``grace`` for Slurm's own completion lag (polls every 10 s, measured).
        settle: pause between a job's end and its next start; Slurm before 23.11 revokes credentials by the second.
        isolate_deadline: to get the drain into Slurm, and to be able to ask it at all.
        vacate_deadline: for the pods of the node to leave.
        validate_deadline: for one spare to pass its checks and come into service.
        max_spares: spares to try before a person is called.
        spare_deadline: wait for a spare to exist.
        retire_deadline: for the provider to acknowledge that it took the machine.
        resume_deadline: from the replacement in service to the first new step of the job.
        heartbeat_fresh: a younger heartbeat counts as fresh when a spare is validated.
        fleet: how many nodes make one incident of the fleet, which is not answered by replacing them.
        slurm_drains: rules for drains in Slurm that are not ours; the first that matches decides, none: only noted.
        node_conditions: conditions of nodes that are evidence.
    """

    name: str = "default"
    mode: Mode = Mode.ENFORCE
    replace: frozenset[FaultClass] = frozenset({FaultClass.HARDWARE, FaultClass.FABRIC})
    opt_out: tuple[str, ...] = (f"{OPT_OUT_LABEL}=true",)
    budget: int = 1
    breaker_starts: int = 10
    breaker_escalations: int = 3
    breaker_window: float = 3600.0
    node_lost_grace: float = 30.0
    grace: float = 120.0
    grace_margin: float = 30.0
    settle: float = 2.0
    isolate_deadline: float = 600.0
    vacate_deadline: float = 600.0
    validate_deadline: float = 300.0
    max_spares: int = 3
    spare_deadline: float = 86_400.0
    retire_deadline: float = 900.0
    resume_deadline: float = 1_800.0
    heartbeat_fresh: float = 30.0
    fleet: FleetRules = field(default_factory=FleetRules)
    slurm_drains: tuple[DrainRule, ...] = ()
    node_conditions: tuple[ConditionRule, ...] = ()
