"""The lines of the benchmark: probes, storms, and the lines of the field with what each of them is."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.correlation.groups import SYMPTOMS, group_of
from everstep.core.faults import classify
from everstep.core.gpu_inventory import normal_pci
from everstep.core.health import Part, Severity
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.kernel_lines.prefixes import message_start, networkd_start
from everstep.core.kmsg_record import parse_record

DATA = Path(__file__).resolve().parents[2] / "tests" / "unit" / "data"
# What a healthy node prints; none of it reports a fault.
ORDINARY = (
    b"cni0: port 3(veth3f1a2b4c) entered blocking state",
    b"IPv6: ADDRCONF(NETDEV_CHANGE): veth3f1a2b4c: link becomes ready",
    b"overlayfs: upperdir is in-use as upperdir/workdir of another mount, accessing files from both mounts",
    b"TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.  Check SNMP counters.",
    b"EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none.",
    b"nvme nvme0: 32/0/0 default/read/poll queues",
    b"perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    b"IPVS: rr: TCP 10.96.0.1:443 - no destination available",
)
# One GPU that reports one code over and over; 29 texts differ, as in the storm that NVSentinel's issue 1120 tells of.
STORM = tuple(
    b"NVRM: Xid (PCI:0000:03:00): 95, pid=%d, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No" % pid
    for pid in range(7001, 7030)
)
# Codes that every agent beside knows, none of which explains another; each probe is on a GPU of its own.
_CODES = (62, 64, 69, 110, 119, 136, 140, 31, 13, 109, 48, 32, 39, 68, 94, 143, 61, 120, 11, 155)
PROBES_A_START = 10  # a node with more faults than that at once is rare, and each makes the report longer
XID, HUNG_TASK = "XID", "hung task"
FAMILIES = (XID, HUNG_TASK)
# Neither a fault's line nor a healthy node's: what follows a fault, or a format that nobody prints.
_AFTERMATH = (
    "VRAM is lost", "Cannot attach gpu", "likely in a bad state", "rm_init_adapter failed", "Unable to read NV_PF0",
    "Failed to set soft min", "NVRM: Xid :", "NVRM: Xid (PCI:...", "NVRM: Xid (43,", "probe routine failed",
    "link has been reset", "The NVIDIA GPU", "installed in this system has", "ena 0000:", "NVRM: Xid 74:",
)  # fmt: skip
PROBE_NUMBER = re.compile(rb"41\d{5}")  # process ids as no other line of the benchmark has
_numbers = itertools.count(4_100_000)


@dataclass(frozen=True, slots=True)
class Probe:
    """A line that reports a fault, and the text by which its report is known."""

    line: str
    marker: str


def probe(family: str, number: int) -> Probe:
    """The ``number``-th probe since the agent's start; a hung task for agents that do not know GPUs."""
    unique = next(_numbers)
    if family == HUNG_TASK:
        return Probe(f"INFO: task python3:{unique} blocked for more than 120 seconds.", f":{unique} blocked")
    code = _CODES[number % len(_CODES)]
    line = f"NVRM: Xid (PCI:0000:{0x20 + number:02x}:00): {code}, pid={unique}, name=python3, Ch 00000008"
    return Probe(line, f"pid={unique}")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the field, without what loggers put before it.

    Attributes:
        family: ``xid``, ``sxid``, ``amd``, ``ib``, ``pcie``, ``host``, or ``none`` for a healthy node's line.
        code: ``kind:code``, empty for a healthy node's line.
        alike: cases that share one of these may be one event, and are not written to one running agent.
    """

    line: str
    family: str
    code: str
    alike: frozenset[str]


def field_cases() -> list[Case]:
    """Lines of the field that must be reported, and healthy ones that must not.

    Left out: what is not the kernel's line (systemd-networkd, rsyslog's folding, a record of user space), what tells
    only of something mended or corrected, and lines that say nothing alone but go with a fault's line.
    """
    catalog, found = shipped_catalog(), dict[str, Case]()
    for name in ("kernel_lines.jsonl", "peer_lines.jsonl"):
        for row in (DATA / name).read_text().splitlines():
            data = json.loads(row)
            expected = data.get("expected") or data["ours"]
            text = _message(data["line"].encode())
            if text is None:
                continue
            evidence = parse_line(text, companions=True)
            if expected["kind"] == "none":
                if evidence is None and text and not any(words in text.decode() for words in _AFTERMATH):
                    found[text.decode()] = Case(text.decode(), "none", "", frozenset())
                continue
            if evidence is None or evidence.part is not Part.WHOLE:
                continue
            mended = evidence.kind != "xid" or evidence.code == "154"  # what an XID of no weight tells is still told
            if mended and classify(catalog, evidence).severity is Severity.INFO:
                continue
            code = f"{evidence.kind}:{evidence.code}"
            found[text.decode()] = Case(text.decode(), expected["kind"], code, _alike(code, evidence.pci))
    return list(found.values())


def _alike(code: str, pci: str | None) -> frozenset[str]:
    """What the case may be one event with: its code, its group, its device. A fabric is taken for a bus."""
    device = frozenset() if pci is None else frozenset({normal_pci(pci)})
    if code in SYMPTOMS:
        return device or frozenset({code})
    name = _group(code)
    return device | {"bus" if name == "nvlink" else name}


def _group(code: str) -> str:
    group = group_of(code)
    return group.name if group else code


def _message(line: bytes) -> bytes | None:
    """The message as the kernel has it; None for what the kernel does not write."""
    record = parse_record(line)
    if record is not None:
        return line.partition(b";")[2] if record.from_kernel else None
    start, times = message_start(line)
    return None if times > 1 or networkd_start(line) is not None else line[start:]


def batches(cases: Sequence[Case], size: int = 40) -> Iterator[list[Case]]:
    """Cases that one running agent may see: none alike, and symptoms and healthy lines by themselves."""
    for symptoms in (False, True):
        faults = [case for case in cases if case.family != "none" and (case.code in SYMPTOMS) is symptoms]
        while faults:
            batch, taken, rest = list[Case](), set[str](), list[Case]()
            for case in faults:
                if case.alike & taken or len(batch) == size:
                    rest.append(case)
                else:
                    batch.append(case)
                    taken |= case.alike
            yield batch
            faults = rest
    healthy = [case for case in cases if case.family == "none"]
    for first in range(0, len(healthy), size):
        yield healthy[first : first + size]


def mixed(cases: Sequence[Case]) -> list[bytes]:
    """Four ordinary lines to each line that reports a fault, of every family; none of a probe's code.

    One code on many GPUs of a node at one moment may be one fault, and then a probe would rightly be part of it.
    """
    seen, lines = set[str](), list[bytes]()
    ordinary, probes = itertools.cycle(ORDINARY), {f"xid:{code}" for code in _CODES}
    for case in cases:
        if case.family != "none" and case.code not in probes and _group(case.code) not in seen:
            seen.add(_group(case.code))
            lines += [*itertools.islice(ordinary, 4), case.line.encode()]
    return lines
