"""Four agents in a lab's real pods, with the whole platform running: what they cost, and what one storm does to three.

    python benchmarks/agents_in_pods.py

Lines go to the nodes' own kernel logs; a line has been reported when a watcher of the lab's API server has it. Only
codes that a program can cause are used, so nothing is healed meanwhile. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from beside.reports import NodeHealthReports
from beside.table import median, megabytes, milliseconds, percentile

from everstep.lab.cluster import Lab
from everstep.lab.hardware.kernel_log import KernelLog
from everstep.lab.layout import LabConfig, LabLayout
from everstep.lab.setup import plan_lab

CODES = (13, 31, 32, 39, 68, 69, 11, 70, 71, 72, 80, 41, 60, 75, 76, 77)  # what programs can cause; each once a node
STORM_LINES, STORM_RATE = 800_000, 18_700
GIVE_UP = 10.0  # seconds after which a report is missing
IDLE = 30.0  # seconds
WARNING = 4
P50, P99, IDLE_SHARE, IDLE_BYTES, STORM_BYTES, SLOWER = 0.05, 0.25, 0.01, 60e6, 100e6, 2.0


@dataclass
class NodeReadings:
    """Of one node's agent: seconds and bytes."""

    idle_share: float = 0.0
    resident: int = 0
    calm: list[float | None] = field(default_factory=list)
    beside_storm: list[float | None] = field(default_factory=list)
    highest: int = 0


class Node:
    """One GPU node of the lab: its kernel log, its agent's process, and what the agent reports."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.name = name
        self.readings = NodeReadings()
        self.reports = NodeHealthReports(lab.kubeconfig, name)
        self._lab = lab
        self._log = KernelLog(LabLayout.of(lab.config.name).kmsg(name))
        self._codes = iter(CODES)
        self._pid = lab.execute(name, "pgrep", "-f", "python3 -m everstep.apps.agent").split()[0]

    def processor(self) -> float:
        """Seconds of processor since the agent's start."""
        fields = self._lab.execute(self.name, "cat", f"/proc/{self._pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, kind: str) -> int:
        """``VmRSS`` or ``VmHWM`` in bytes."""
        text = self._lab.execute(self.name, "grep", f"^{kind}:", f"/proc/{self._pid}/status")
        return int(text.split()[1]) * 1024

    def seconds_to_report(self) -> float | None:
        """One fault, on the node's first GPU, with a code that it has not had."""
        code, mark = next(self._codes), f"pid={4_200_000 + time.monotonic_ns() // 1000 % 100_000}"
        written = time.monotonic()
        self._log.append(WARNING, f"NVRM: Xid (PCI:0000:01:00): {code}, {mark}, name=python3, Ch 00000008")
        seen = self.reports.wait(mark, GIVE_UP)
        return None if seen is None else seen - written

    def storm(self) -> None:
        """The same code over and over, at a bounded rate; a record is a write, as the kernel does it."""
        began = time.monotonic()
        for number in range(STORM_LINES):
            while number >= (time.monotonic() - began) * STORM_RATE:
                time.sleep(0.002)
            self._log.append(WARNING, f"NVRM: Xid (PCI:0000:02:00): 43, pid={7000 + number % 29}, name=python3, Ch 08")


@contextmanager
def four_nodes(name: str) -> Iterator[list[Node]]:
    """The nodes of a lab with Everstep on it."""
    config = LabConfig(name=name, nodes=3, spares=1)
    with Lab.up(plan_lab(config)) as lab:
        nodes = [Node(lab, node) for node in config.gpu_nodes]
        try:
            for node in nodes:
                node.reports.wait_verdict(60)
            yield nodes
        finally:
            for node in nodes:
                node.reports.close()


def measure(nodes: Sequence[Node], probes: int) -> float | None:
    """Fills the nodes' readings; returns the seconds to the next fault on the node that had the storm."""
    before, began = [node.processor() for node in nodes], time.monotonic()
    time.sleep(IDLE)
    for node, processor in zip(nodes, before, strict=True):
        node.readings.idle_share = (node.processor() - processor) / (time.monotonic() - began)
        node.readings.resident = node.memory("VmRSS")
    for _ in range(probes):
        for node in nodes:
            node.readings.calm.append(node.seconds_to_report())
            time.sleep(0.1)
    stormy, *others = nodes
    weather = threading.Thread(target=stormy.storm)
    weather.start()
    for _ in range(probes):
        for node in others:
            node.readings.beside_storm.append(node.seconds_to_report())
        time.sleep(1.0)
    weather.join()
    after = stormy.seconds_to_report()
    for node in nodes:
        node.readings.highest = node.memory("VmHWM")
    return after


def targets(nodes: Sequence[Node], after: float | None) -> list[tuple[str, bool]]:
    """What must hold inside the containers, and whether it did."""
    calm = [one for node in nodes for one in node.readings.calm]
    beside = [one for node in nodes[1:] for one in node.readings.beside_storm]
    p50, p99 = percentile(calm, 0.5), percentile(calm, 0.99)
    stormy = median(beside)
    return [
        ("p50 of a line to its report", p50 is not None and p50 <= P50),
        ("p99 of a line to its report", p99 is not None and p99 <= P99),
        ("idle processor", all(node.readings.idle_share < IDLE_SHARE for node in nodes)),
        ("idle memory", all(node.readings.resident < IDLE_BYTES for node in nodes)),
        ("memory in the storm", all(node.readings.highest < STORM_BYTES for node in nodes)),
        ("the others beside a storm", p50 is not None and stormy is not None and stormy <= SLOWER * p50),
        ("the next fault after the storm", after is not None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--probes", type=int, default=7, help="faults a node, calm and beside the storm")
    parser.add_argument("--name", default="bench-agents", help="the lab's name (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="file for all readings")
    arguments = parser.parse_args()
    with four_nodes(arguments.name) as nodes:
        after = measure(nodes, arguments.probes)
        verdicts = targets(nodes, after)
    print("| node | idle | resident | p50 calm | p50 beside a storm | highest memory |\n" + "|---" * 6 + "|")
    for node in nodes:
        one = node.readings
        calm, beside = median(one.calm), median(one.beside_storm)
        cells = [
            node.name, f"{one.idle_share:.2%}", megabytes(one.resident), milliseconds(calm) if calm else "-",
            milliseconds(beside) if beside else "the storm", megabytes(one.highest),
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |")
    print(f"\nthe next fault after the storm: {'lost' if after is None else milliseconds(after)}")
    for what, reached in verdicts:
        print(f"{'yes' if reached else 'NO '} {what}")
    if arguments.json:
        text = {"nodes": {node.name: asdict(node.readings) for node in nodes}, "after": after}
        arguments.json.write_text(json.dumps(text, indent=1))
    return 0 if all(reached for _, reached in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
