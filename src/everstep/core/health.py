"""What is known about the health of a node: evidence, faults and the verdict that the agent publishes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from everstep.core.occurrences import Occurrence
from everstep.core.plain_text import plain

LINE_LIMIT = 512  # bytes of a line that evidence keeps
NAME_LIMIT = 128  # bytes of a name; a host name or a path that people read is shorter
REASON_LIMIT = 1000  # bytes; it becomes the message of a condition and of an Event, which holds 1024
_KEY_LIMIT = 256  # bytes: kind, code and a name


class FaultClass(StrEnum):
    """Who is to blame; decides what may be done about it."""

    APPLICATION = "application"
    SUSPECT = "suspect"
    HARDWARE = "hardware"
    FABRIC = "fabric"
    STORAGE = "storage"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class FirstAction(StrEnum):
    """What the catalogue advises for a fault; the policy decides what is done."""

    NONE = "none"
    RESTART_JOB = "restartJob"
    RESET_GPU = "resetGPU"
    REBOOT_NODE = "rebootNode"
    REPLACE_NODE = "replaceNode"
    CALL_HUMAN = "callHuman"


class Verdict(StrEnum):
    """The agent's word on its node. Unknown is never treated as Healthy."""

    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"


class Part(StrEnum):
    """What share of an event a line is: drivers spread one event over several lines."""

    WHOLE = "whole"  # stands for the event by itself
    DETAIL = "detail"  # tells more of an event whose first line came just before
    COMPANION = "companion"  # goes with another line that reports the event; alone it is a weaker sign of the same


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation from one source, before any judgement.

    Its texts come from the kernel, from users' programs, from file servers: they are kept printable and short.

    Attributes:
        kind: ``xid``, ``sxid``, ``amd``, ``ib``, ``pcie`` or ``host``.
        code: number or name within that kind, for example ``79``.
        pci: PCI address exactly as printed, without ``PCI:``; None where the line has none.
        pid: process id as printed, in the host's pid namespace; None where absent or ``'<unknown>'``.
        process: process name as printed; None where absent or ``<unknown>``.
        line: the text it was read from, cut at ``LINE_LIMIT``.
        injected: True when user space wrote the record; it stays marked for ever.
        subject: what else the line names as the thing concerned: an interface, a disk, a file server.
        part: whether the line is the event or goes with another line.
        count: how many messages a logger folded into this line.
    """

    kind: str
    code: str
    pci: str | None = None
    pid: int | None = None
    process: str | None = None
    line: str = ""
    injected: bool = False
    subject: str | None = None
    part: Part = Part.WHOLE
    count: int = 1

    def __post_init__(self) -> None:
        _keep_plain(self, _EVIDENCE_TEXTS)


_EVIDENCE_TEXTS = (("line", LINE_LIMIT), ("subject", NAME_LIMIT), ("process", NAME_LIMIT))


def _keep_plain(found: object, texts: Iterable[tuple[str, int]]) -> None:
    for name, limit in texts:
        text = getattr(found, name)
        if text and (len(text) * 4 > limit or not text.isprintable()):
            object.__setattr__(found, name, plain(text, limit))


@dataclass(frozen=True, slots=True)
class Fault:
    """A judged piece of evidence that is active on a node.

    Attributes:
        key: identity for de-duplication, ``<kind>:<code>@<gpu serial, PCI address or "node">``.
        first_seen, last_seen: Unix seconds of the agent's own clock.
        count: how often the evidence came; a log may fold or drop lines, so it is no severity.
        boot_id: boot in which it was seen.
    """

    key: str
    kind: str
    code: str
    fault_class: FaultClass
    severity: Severity
    action: FirstAction
    reason: str
    pci: str | None = None
    gpu_index: int | None = None
    gpu_serial: str | None = None
    line: str = ""
    first_seen: float = 0.0
    last_seen: float = 0.0
    count: int = 1
    boot_id: str = ""
    injected: bool = False

    def __post_init__(self) -> None:
        _keep_plain(self, _FAULT_TEXTS)


# A report comes from another machine, and may come from whoever stole an agent's token.
_FAULT_TEXTS = (
    ("key", _KEY_LIMIT),
    ("kind", NAME_LIMIT),
    ("code", NAME_LIMIT),
    ("reason", REASON_LIMIT),
    ("line", LINE_LIMIT),
)
_ACCUSING = frozenset((FaultClass.HARDWARE, FaultClass.FABRIC, FaultClass.STORAGE))


def accuses(fault: Fault) -> bool:
    """Whether a fault alone makes its node Faulty. Application-class and suspect faults never do."""
    return fault.severity is Severity.CRITICAL and fault.fault_class in _ACCUSING


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the node's driver reports it."""

    index: int
    uuid: str
    serial: str
    pci: str
    model: str = ""
    lost: bool = False
    recovery_action: str = "none"


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node's agent last said, and how long ago its heartbeat was renewed.

    Attributes:
        heartbeat: Unix seconds of the last Lease renewal; None when there is no Lease.
        history: what the node's devices had in the last seven days.
        inherited: what the controller has told it of its GPUs from other nodes.
    """

    node: str
    verdict: Verdict
    boot_id: str = ""
    faults: tuple[Fault, ...] = field(default=())
    gpus: tuple[Gpu, ...] = field(default=())
    reason: str = ""
    heartbeat: float | None = None
    history: tuple[Occurrence, ...] = field(default=())
    inherited: tuple[Occurrence, ...] = field(default=())

    def __post_init__(self) -> None:
        _keep_plain(self, (("reason", REASON_LIMIT),))
