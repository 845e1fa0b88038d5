"""How many lines of a kernel log one core reads a second: ordinary ones, and ones that report a fault.

    python benchmarks/parser.py            # the table; exit code 1 when a figure is missed
    python benchmarks/parser.py --seconds 5

Time is the processor's own for this thread, so other work on the machine does not count, though it costs cache and,
on shared cores, clock. The best of several rounds stands: it is the one that was disturbed least.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.faults import classify
from everstep.core.kernel_lines.folding import NOTHING, follow
from everstep.core.kernel_lines.parser import parse_line

FIELD = Path(__file__).resolve().parents[1] / "tests" / "unit" / "data" / "kernel_lines.jsonl"
ORDINARY_RATE, FAULT_RATE = 1_000_000, 50_000  # lines a second on one core that must be reached

# What a healthy node's kernel prints: container networking, audit, discs, timers. None reports a fault.
ORDINARY = [
    f"{priority},{4471 + number},{3023054882 + number * 997},-;{text}".encode()
    for number, (priority, text) in enumerate(
        [
            (6, "IPv6: ADDRCONF(NETDEV_CHANGE): veth3f1a2b4c: link becomes ready"),
            (6, "cni0: port 3(veth3f1a2b4c) entered blocking state"),
            (6, "device veth3f1a2b4c entered promiscuous mode"),
            (
                5,
                'audit: type=1400 audit(1732900000.123:456): apparmor="STATUS" operation="profile_replace" '
                'profile="unconfined" name="cri-containerd.apparmor.d" pid=1234 comm="apparmor_parser"',
            ),
            (6, "usb 1-1: new high-speed USB device number 2 using xhci_hcd"),
            (6, "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none."),
            (6, "systemd[1]: Started Journal Service."),
            (6, "overlayfs: upperdir is in-use as upperdir/workdir of another mount, accessing files from both mounts"),
            (6, "nvme nvme0: 32/0/0 default/read/poll queues"),
            (4, "TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.  Check SNMP counters."),
            (6, "docker0: port 1(vethdc1b2a3) entered disabled state"),
            (4, "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79500"),
            (6, "IPVS: rr: TCP 10.96.0.1:443 - no destination available"),
            (6, "cgroup: cgroup: disabling cgroup2 socket matching due to net_prio or net_cls activation"),
            (6, "e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps Full Duplex, Flow Control: Rx/Tx"),
            (4, "hrtimer: interrupt took 5423 ns"),
        ]
    )
]


def faulty() -> list[bytes]:
    """Every line of the field that reports a fault."""
    cases = [json.loads(line) for line in FIELD.read_text().splitlines()]
    return [case["line"].encode() for case in cases if case["expected"]["kind"] != "none"]


def rate(read: Callable[[bytes], object], lines: Sequence[bytes], seconds: float) -> float:
    """Lines a second of this thread's processor time, the best of several rounds."""
    best = 0.0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        repeats = max(1, 20_000 // len(lines))
        began = time.thread_time()
        for _ in range(repeats):
            for line in lines:
                read(line)
        best = max(best, repeats * len(lines) / (time.thread_time() - began))
    return best


def streaming() -> Callable[[bytes], object]:
    """The reader that keeps what the lines before have begun."""
    state = NOTHING

    def read(line: bytes) -> object:
        nonlocal state
        state, evidence = follow(state, line)
        return evidence

    return read


def rows(seconds: float) -> Iterator[tuple[str, float, int | None]]:
    """What was read, at which rate, and which rate it must reach."""
    catalog = shipped_catalog()

    def judged(line: bytes) -> None:
        if (evidence := parse_line(line)) is not None:
            classify(catalog, evidence)

    journal = [b"Mar 27 17:40:36 gpu-7 kernel: " + line.partition(b";")[2] for line in ORDINARY]
    yield "ordinary records of /dev/kmsg", rate(parse_line, ORDINARY, seconds), ORDINARY_RATE
    yield "the same, as a stream", rate(streaming(), ORDINARY, seconds), None
    yield "the same, as lines of syslog", rate(parse_line, journal, seconds), None
    yield "lines that report a fault", rate(parse_line, faulty(), seconds), FAULT_RATE
    yield "the same, judged by the catalogue", rate(judged, faulty(), seconds), FAULT_RATE
    storm = [b"4,1,1,-;NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"]
    yield "one XID over and over, judged", rate(judged, storm, seconds), FAULT_RATE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row (default: %(default)s)")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, one thread, {platform.machine()}")
    missed = 0
    for name, found, wanted in rows(arguments.seconds):
        verdict = "" if wanted is None else f"  must reach {wanted:,}: {'yes' if found >= wanted else 'NO'}"
        missed += wanted is not None and found < wanted
        print(f"{name:<36}{found:>12,.0f} lines/s{verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
