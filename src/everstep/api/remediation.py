"""Remediation: one incident on one node, from the fault to the job's first new step. Written by the controller only.

Field names equal those of :mod:`everstep.core.remediation_status`, whose docstrings say more; a test compares them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from everstep.api.meta import Condition, Fault, Moment
from everstep.api.schema import doc, map_of
from everstep.core.remediation_status import JobPhase, Outcome, Stage, StepName


class RemediationSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """What happened, where. Written once, when the incident is opened."""

    node: Annotated[str, doc("Name of the node.")] = msgspec.field(name="nodeName")
    node_uid: Annotated[str, doc("UID of the node then; the name may come back as another machine.")] = msgspec.field(
        name="nodeUID"
    )
    boot_id: Annotated[str, doc("Boot of the node in which the fault was found.")] = msgspec.field(name="bootID")
    pool: Annotated[str, doc("Pool that the node was in service in.")]
    machine: Annotated[str, doc("Name under which the provider knows the machine.")]
    gpus: Annotated[int, doc("GPUs that a healthy node of the pool has.")]
    faults: Annotated[list[Fault], map_of("Faults that were active then; the first one names the incident.", "key")]
    action: Annotated[str, doc("What the policy orders for it: replace.")]
    policy: Annotated[str, doc("Name of the RemediationPolicy that applies.")] = msgspec.field(name="policyRef")
    title: Annotated[str, doc("The fault in a few words, for the screen.")] = ""


class Step(msgspec.Struct, rename="camel", omit_defaults=True):
    """One step that has happened."""

    name: Annotated[StepName, doc("Which step of the promise.")]
    at: Annotated[Moment, doc("When it happened, not when it was noticed, where that is known.")]
    reason: Annotated[str, doc("What was seen, in one sentence.")]


class JobRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """One Slurm job that the fault touched, on its way back to work."""

    id: Annotated[str, doc("Slurm job id; it stays the same when the job is requeued.")]
    cluster: Annotated[str, doc("namespace/name of its SlurmCluster.")]
    user: Annotated[str, doc("Owner of the job.")]
    name: Annotated[str, doc("Name of the job.")]
    restarts_before: Annotated[int, doc("Slurm's restart count when the fault was found; guards every request.")]
    restarts: Annotated[int, doc("Slurm's restart count when last seen.")]
    guard: Annotated[int, doc("Restart count for which the present stop is asked; grows when a launch failed.")]
    phase: Annotated[JobPhase, doc("Where the job is on its way back.")]
    nodes: Annotated[list[str], doc("Nodes that it held when the fault was found.")] = []
    gpus: Annotated[int | None, doc("GPUs that it held in total; absent when Slurm did not say.")] = None
    phase_since: Annotated[Moment | None, doc("When that phase was entered.")] = None
    asked_at: Annotated[Moment | None, doc("Mark written before Slurm is asked to requeue it.")] = None
    signalled_at: Annotated[Moment | None, doc("When its processes got SIGTERM.")] = None
    stopped_at: Annotated[Moment | None, doc("When it was first seen waiting in the queue again.")] = None
    released_at: Annotated[Moment | None, doc("Mark written before its hold is taken off.")] = None
    nudged_at: Annotated[Moment | None, doc("When its start was last asked for again.")] = None
    started_at: Annotated[Moment | None, doc("When Slurm started it again.")] = None
    resumed_at: Annotated[Moment | None, doc("Its first new step; three seconds of running if it keeps no record.")] = (
        None
    )
    resumed_from: Annotated[int | None, doc("Step that it resumed from; absent when it started afresh.")] = None
    steps_lost: Annotated[
        int | None, doc("Steps that are computed twice, at least so many if the job was killed; absent when unknown.")
    ] = None
    gpu_seconds_lost: Annotated[
        float | None, doc("GPUs x seconds from the signal to the first new step; absent when unknown.")
    ] = None
    saved_step: Annotated[int | None, doc("Step of the checkpoint that it resumes from.")] = None
    saved_bytes: Annotated[int | None, doc("Size of that checkpoint in bytes.")] = None
    save_seconds: Annotated[float | None, doc("Seconds that saving it took.")] = None
    saved_at: Annotated[Moment | None, doc("When that checkpoint was complete.")] = None
    load_seconds: Annotated[float | None, doc("Seconds that loading it took.")] = None
    launches: Annotated[int, doc("How often its release led to a failed launch.")] = 0
    reason: Annotated[str, doc("The latest about it, in one sentence.")] = ""


class Replacement(msgspec.Struct, rename="camel", omit_defaults=True):
    """The spare that takes the node's place."""

    node: Annotated[str, doc("Name of the spare.")]
    since: Annotated[Moment, doc("Mark written before the spare is claimed.")]
    validated_at: Annotated[Moment | None, doc("When it passed every check, before any work could land on it.")] = None
    in_service_at: Annotated[Moment | None, doc("When it was in the pool and, with Slurm, answering there.")] = None


class OperationMark(msgspec.Struct, rename="camel", omit_defaults=True):
    """The one irreversible act, marked before it is asked for."""

    id: Annotated[str, doc("Id under which the provider knows the operation.")]
    machine: Annotated[str, doc("Machine that it is about.")]
    marked_at: Annotated[Moment, doc("When the mark was written.")]
    state: Annotated[
        str, doc("What the provider last said: accepted, running, done or failed; unknown when nobody could tell.")
    ] = ""
    acknowledged_at: Annotated[Moment | None, doc("When the provider first said that it knows the operation.")] = None
    ended_at: Annotated[Moment | None, doc("When it was seen to have ended, or asking was given up.")] = None
    message: Annotated[str, doc("What the provider said about its end.")] = ""


class Durations(msgspec.Struct, omit_defaults=True):
    """Legs of the heal in seconds; absent when they did not happen or are unknown."""

    isolate_s: Annotated[float | None, doc("Seconds from detected to isolated.")] = msgspec.field(
        name="isolateSeconds", default=None
    )
    checkpoint_s: Annotated[float | None, doc("Seconds from the signal to the saved checkpoint.")] = msgspec.field(
        name="checkpointSeconds", default=None
    )
    requeue_s: Annotated[float | None, doc("Seconds from saved to waiting in the queue.")] = msgspec.field(
        name="requeueSeconds", default=None
    )
    replace_s: Annotated[float | None, doc("Seconds from cordoned to the replacement in service.")] = msgspec.field(
        name="replaceSeconds", default=None
    )
    healthy_node_s: Annotated[float | None, doc("Seconds from detected to a validated replacement in service.")] = (
        msgspec.field(name="healthyNodeSeconds", default=None)
    )
    resumed_s: Annotated[float | None, doc("Seconds from detected to the job's first new step.")] = msgspec.field(
        name="resumedSeconds", default=None
    )
    overhead_s: Annotated[
        float | None, doc("resumedSeconds without the job's own save and load and Slurm's scheduling wait.")
    ] = msgspec.field(name="overheadSeconds", default=None)


class Told(msgspec.Struct, rename="camel", omit_defaults=True):
    """One notice to people that was delivered or given up."""

    key: Annotated[str, doc("Which notice.")]
    error: Annotated[str, doc("Why it could not be delivered; absent when it was.")] = ""


class RemediationStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """How far the heal has come. Programs read the conditions; people read reason and steps."""

    stage: Annotated[Stage, doc("What the incident waits for now; internal, may change between versions.")]
    since: Annotated[Moment | None, doc("When that stage was entered.")] = None
    reason: Annotated[str, doc("Why it is where it is, in one sentence.")] = ""
    outcome: Annotated[Outcome | None, doc("How it ended; absent while it is open.")] = None
    admitted_at: Annotated[Moment | None, doc("When budget and breaker let it start; absent while it waits.")] = None
    steps: Annotated[
        list[Step], map_of("The steps that have happened, in the order in which they were seen.", "name")
    ] = []
    jobs: Annotated[list[JobRecord], map_of("Slurm jobs that the fault touched.", "cluster", "id")] = []
    clusters: Annotated[list[str], doc("Slurm clusters (namespace/name) that knew the node when it was isolated.")] = []
    merged_faults: Annotated[list[str], doc("Keys of further faults found on the node meanwhile.")] = []
    replacement: Annotated[Replacement | None, doc("The spare that takes the node's place.")] = None
    rejected_spares: Annotated[list[str], doc("Spares that failed their checks.")] = []
    operation: Annotated[OperationMark | None, doc("The provider's operation on the faulty machine.")] = None
    left_alone: Annotated[str, doc("Why the node may not be replaced; absent when it may.")] = ""
    problem: Annotated[str, doc("Why a person is called; absent when nobody is needed.")] = ""
    cancelled: Annotated[str, doc("Who took the node back; absent when nobody did.")] = ""
    told: Annotated[list[Told], map_of("Notices that were delivered or given up.", "key")] = []
    durations: Annotated[Durations, doc("Legs of the heal in seconds.")] = msgspec.field(default_factory=Durations)
    resolved_at: Annotated[Moment | None, doc("When the incident was closed.")] = None
    conditions: Annotated[list[Condition], map_of("The state for programs and kubectl wait.", "type")] = []
    job_list: Annotated[str, doc("Ids of the jobs, separated by commas, for the screen.")] = ""
