"""Processor time and memory of an agent: its process and all that it started."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EVERY = 0.05  # seconds between two looks at the memory


def family(pid: int) -> list[int]:
    """The process and its living descendants."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended meanwhile
    return found


def processor_seconds(pid: int) -> float:
    """User and system time of the family; children that have ended and were waited for are in it."""
    return sum(_times(one) for one in family(pid))


def _times(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICK  # utime, stime, cutime, cstime


def resident_bytes(pid: int) -> int:
    """Resident set of the family; pages that two of them share count twice."""
    total = 0
    for one in family(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return total


def proportional_bytes(pid: int) -> int:
    """Proportional set of the family: a shared page counts by its share."""
    total = 0
    for one in family(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


@dataclass(frozen=True, slots=True)
class Cost:
    """What an agent used over a stretch of time: seconds of processor, and its highest resident set in bytes."""

    seconds: float
    processor: float
    peak: int


class Meter:
    """Measures while the ``with`` block runs; ``cost`` stands afterwards."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._peak = 0
        self.cost = Cost(0.0, 0.0, 0)

    def __enter__(self) -> Meter:
        self._processor, self._began = processor_seconds(self._pid), os.times().elapsed
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()
        self.cost = Cost(os.times().elapsed - self._began, processor_seconds(self._pid) - self._processor, self._peak)

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        self._peak = max(self._peak, resident_bytes(self._pid))
