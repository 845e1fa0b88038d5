"""What the GPUs did in the last quarter of an hour, for plots."""

from __future__ import annotations

from collections import deque

import msgspec

from everstep.lab.hardware.gpus import GpuReading


class Sample(msgspec.Struct, frozen=True):
    """One machine at one moment; each list holds one number a GPU, by index. ``time`` is Unix seconds."""

    time: float
    node: str
    running: bool
    utilization_percent: tuple[int, ...]
    power_watts: tuple[float, ...]
    temperature_c: tuple[int, ...]
    memory_used_mib: tuple[int, ...]
    lost: tuple[bool, ...]


def sample_of(time: float, node: str, running: bool, gpus: list[GpuReading]) -> Sample:
    """A sample of a machine's present readings."""
    return Sample(
        time=round(time, 3),
        node=node,
        running=running,
        utilization_percent=tuple(g.utilization_percent for g in gpus),
        power_watts=tuple(g.power_watts for g in gpus),
        temperature_c=tuple(g.temperature_c for g in gpus),
        memory_used_mib=tuple(g.memory_used_mib for g in gpus),
        lost=tuple(g.lost for g in gpus),
    )


class History:
    """A ring of samples, oldest first; keeps ``seconds`` of them."""

    def __init__(self, seconds: float = 900.0) -> None:
        self._seconds = seconds
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Samples come in the order of their time."""
        self._samples.append(sample)
        while self._samples[0].time < sample.time - self._seconds:
            self._samples.popleft()

    def since(self, time: float) -> list[Sample]:
        """All samples later than ``time`` (Unix seconds)."""
        return [sample for sample in self._samples if sample.time > time]
