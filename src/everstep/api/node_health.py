"""NodeHealth: what a node's own agent says about it. Named like the node; written by that agent only."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everstep.api.cases import Case, Occurrence
from everstep.api.meta import Fault, Moment
from everstep.api.schema import doc, map_of
from everstep.core.health import Verdict


class Gpu(msgspec.Struct, rename="camel", omit_defaults=True):
    """One GPU as the node's driver reports it."""

    index: Annotated[int, doc("Index on the node.")]
    uuid: Annotated[str, doc("UUID that the driver gives it.")]
    serial: Annotated[str, doc("Serial number of the board; a replaced GPU has another one.")] = ""
    pci: Annotated[str, doc("PCI address.")] = ""
    model: Annotated[str, doc("Product name.")] = ""
    lost: Annotated[bool, doc("True when the driver can no longer reach it.")] = False
    recovery_action: Annotated[str, doc("What the driver says is needed to recover it: none, reset, reboot, ...")] = (
        "none"
    )


class Summary(msgspec.Struct, rename="camel", omit_defaults=True):
    """The same facts in a form that fits the columns of kubectl get."""

    faults: Annotated[str, doc("Codes of the active faults, separated by commas.")] = ""
    gpus: Annotated[str, doc("GPUs that the driver reaches / GPUs installed.")] = ""


class LogPosition(msgspec.Struct, rename="camel"):  # written whole: server-side apply makes null of an emptied map
    """How far the agent has read this boot's kernel log; one write with the faults, so that none counts twice."""

    sequence: Annotated[int, doc("Number of the last kernel record that changed the cases; -1 before the first.")] = -1
    lost: Annotated[int, doc("Records that the kernel overwrote before they were read.")] = 0
    numbering: Annotated[str, doc("How the log numbers its records; another numbering has other positions.")] = ""
    skipped: Annotated[int, doc("Records that could not be judged and were passed over.")] = 0


class Source(msgspec.Struct, rename="camel", omit_defaults=True):
    """One source of evidence on the node. While one is broken, the verdict is never Healthy."""

    name: Annotated[str, doc("The kernel log, the GPUs, NVML, ...")]
    broken: Annotated[str, doc("Why it cannot be asked now; empty while it works.")] = ""
    restarts: Annotated[int, doc("How often the agent had to start it again; as of the last write.")] = 0


class NodeHealthStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the agent last found; written on change only. The agent's heartbeat is a Lease in everstep-node-lease."""

    verdict: Annotated[Verdict, doc("The agent's word on its node. Unknown is never treated as Healthy.")]
    reason: Annotated[str, doc("Why, in one sentence.")] = ""
    since: Annotated[Moment | None, doc("Since when the verdict stands.")] = None
    boot_id: Annotated[str, doc("The kernel's boot id; it changes with every boot.")] = msgspec.field(
        name="bootID", default=""
    )
    faults: Annotated[list[Fault], map_of("Faults that are active on the node.", "key")] = []
    gpus: Annotated[list[Gpu], map_of("GPUs of the node.", "index")] = []
    sources: Annotated[list[Source], map_of("What the agent asks, and whether it answers.", "name")] = []
    cases: Annotated[
        list[Case], doc("What the faults are judged from; with the position in the log, an agent goes on from here.")
    ] = []
    history: Annotated[
        list[Occurrence], doc("What the devices had in the last 7 days. It belongs to them, not to the node.")
    ] = []
    inherited: Annotated[
        list[Occurrence],
        doc("History of this node's GPUs from other nodes. Written by the controller; the agent takes it over."),
    ] = []
    log: Annotated[LogPosition | None, doc("How far the agent has read the kernel log.")] = None
    summary: Annotated[Summary, doc("The same facts for the columns of kubectl get.")] = msgspec.field(
        default_factory=Summary
    )
