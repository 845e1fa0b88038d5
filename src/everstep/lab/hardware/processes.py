"""What the jobs of a node do to its GPUs, read from the host's /proc.

One pass over /proc a sample finds the descendants of every node's first process. Those whose environment says that
they may use a GPU (as Slurm sets it) are that GPU's users. A user's busy time is its CPU time plus the time it waited
for a CPU: a crowded host must not look like an idle GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from everstep.lab.hardware.gpus import CONTEXT_MIB, Load

DEVICE_VARIABLES = (b"CUDA_VISIBLE_DEVICES=", b"SLURM_STEP_GPUS=", b"SLURM_JOB_GPUS=")  # first one present counts
CONTEXT_AFTER_SECONDS = 0.5  # CPU time after which a process counts as one that opened the device (a shell never does)
SETTLED_AFTER_SECONDS = 2.0  # a young process may still be about to exec into what it will be
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20
KTHREADD = 2


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that matter here; ``started``, in ticks since boot, tells lives of a pid apart."""

    pid: int
    parent: int
    name: bytes
    cpu_seconds: float
    started: int
    resident_mib: float


@dataclass(slots=True)
class _Seen:
    """What is remembered of one process between samples."""

    started: int
    name: bytes
    settled: bool = False
    devices: tuple[str, ...] = ()
    busy: float | None = None


@dataclass(slots=True)
class ProcessSampler:
    """Turns two looks at /proc into the load of each GPU; keeps only what it needs of the look before."""

    proc: str = "/proc"
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _at: float | None = None

    def sample(self, now: float, first_processes: Mapping[str, int]) -> dict[str, dict[str, Load]]:
        """Load by node and device since the last call.

        Args:
            now: monotonic seconds.
            first_processes: host pid of each running node's first process, by node name.

        Returns:
            For each node, load by device as the environment names it: ``"0"``, or a GPU's UUID.
        """
        elapsed = None if self._at is None else max(now - self._at, 1e-3)
        self._at = now
        table = read_table(self.proc)
        members = descendants(table, first_processes)
        seen: dict[int, _Seen] = {}
        loads: dict[str, dict[str, Load]] = {node: {} for node in first_processes}
        for pid, node in members.items():
            stat = table[pid]
            process = self._recall(stat)
            seen[pid] = process
            if process.devices:
                self._charge(loads[node], stat, process, elapsed)
        self._seen = seen
        return loads

    def _recall(self, stat: ProcessStat) -> _Seen:
        process = self._seen.get(stat.pid)
        if process is None or process.started != stat.started or process.name != stat.name:
            process = _Seen(stat.started, stat.name, busy=process.busy if process else None)
        if not process.settled:
            process.devices = read_devices(self.proc, stat.pid)
            process.settled = _uptime() - stat.started / TICKS > SETTLED_AFTER_SECONDS
        return process

    def _charge(self, loads: dict[str, Load], stat: ProcessStat, process: _Seen, elapsed: float | None) -> None:
        busy = read_busy_seconds(self.proc, stat.pid)
        known_before = process.busy is not None
        delta = 0.0 if busy is None or elapsed is None else max(0.0, busy - (process.busy or 0.0))
        process.busy = busy
        # a process first seen old (this sampler was restarted) brings a whole life of CPU time: not this interval's
        young = _uptime() - stat.started / TICKS < (elapsed or 0.0) + SETTLED_AFTER_SECONDS
        share = delta / elapsed if elapsed and (known_before or young) else 0.0
        memory = CONTEXT_MIB + stat.resident_mib if stat.cpu_seconds > CONTEXT_AFTER_SECONDS else 0.0
        for device in process.devices:
            before = loads.get(device, Load())
            loads[device] = Load(before.busy + share, before.memory_mib + memory)


def read_table(proc: str = "/proc") -> dict[int, ProcessStat]:
    """Every process but the kernel's own threads, by pid."""
    table: dict[int, ProcessStat] = {}
    for name in os.listdir(proc):
        if name.isdigit() and (stat := read_stat(proc, int(name))) and KTHREADD not in (stat.pid, stat.parent):
            table[stat.pid] = stat
    return table


def read_stat(proc: str, pid: int) -> ProcessStat | None:
    """None when the process is gone, or is a zombie: it does no work and only waits to be reaped."""
    raw = _read(f"{proc}/{pid}/stat", 1024)
    if raw is None:
        return None
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()  # fields[0] is field 3 of proc(5): the state
    if len(fields) < 22 or fields[0] in b"ZX":
        return None
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        name=head.partition(b"(")[2],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        started=int(fields[19]),
        resident_mib=int(fields[21]) * PAGE_MIB,
    )


def descendants(table: Mapping[int, ProcessStat], roots: Mapping[str, int]) -> dict[int, str]:
    """Node by pid, for every process that descends from a node's first process, that process included."""
    owner: dict[int, str | None] = {pid: node for node, pid in roots.items() if pid in table}
    for pid in table:
        path: list[int] = []
        at = pid
        while at not in owner and at in table:
            path.append(at)
            at = table[at].parent
        found = owner.get(at)
        for visited in path:
            owner[visited] = found
    return {pid: node for pid, node in owner.items() if node is not None}


def read_devices(proc: str, pid: int) -> tuple[str, ...]:
    """The GPUs that the process's environment gives it; empty when none, or when it is gone."""
    raw = _read(f"{proc}/{pid}/environ", 1 << 18)
    return parse_devices(raw.split(b"\0")) if raw else ()


def parse_devices(environment: Iterable[bytes]) -> tuple[str, ...]:
    """Devices named by the first of the known variables that is present; ``NoDevFiles`` and the like mean none."""
    values: Sequence[bytes] = list(environment)
    for variable in DEVICE_VARIABLES:
        for value in values:
            if value.startswith(variable):
                names = value[len(variable) :].decode(errors="replace").split(",")
                return tuple(name.strip() for name in names if name.strip().isdigit() or name.startswith("GPU-"))
    return ()


def read_busy_seconds(proc: str, pid: int) -> float | None:
    """CPU time plus time spent waiting for a CPU, of all threads alive; None when the process is gone."""
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return None
    total = 0
    for thread in threads:
        if raw := _read(f"{proc}/{pid}/task/{thread}/schedstat", 128):
            ran, waited, _ = raw.split()
            total += int(ran) + int(waited)
    return total / 1e9


def _uptime() -> float:
    """Seconds since the host booted, the clock of ``started``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _read(path: str, size: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
