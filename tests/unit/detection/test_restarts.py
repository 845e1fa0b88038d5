"""kill -9 at any moment: whatever was written last, the next agent ends where one that was never killed does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.correlation.tally import tallied
from everstep.core.diagnosis import Diagnosis, Told, caught_up, judged, resumed, with_lines
from everstep.core.health import Gpu
from everstep.core.kernel_lines.stream import RecordStream

CATALOG = shipped_catalog()
GPUS = tuple(Gpu(index, f"GPU-{index}", f"s{index}", f"0000:{index + 1:02x}:00") for index in range(4))
END = 1_000_000.0

TEXTS = [
    f"NVRM: Xid (PCI:0000:0{gpu}:00): {code}, pid=1, name=a, text"
    for gpu in (1, 2)
    for code in (31, 45, 48, 63, 79, 94, 95, 119)
] + [
    "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:03:00.0",
    "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "               NVRM: fallen off the bus and is not responding to commands.",
    "mlx5_core 0000:0c:00.0 rdma0: Link down",
    "mlx5_core 0000:0c:00.0 rdma0: Link up",
    "NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=a, Ch 2 caused by previous Xid 95",
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
    "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 28",
]


@dataclass
class Agent:
    """Reads a log in batches and writes now and then, as the real one does; can be killed."""

    records: list[bytes]
    written: Diagnosis | None = None
    now: Diagnosis = field(init=False)
    read: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.now = replace(resumed(self.written, "boot-1"), gpus=GPUS)
        self.stream, self.read = RecordStream(), 0

    def batch(self, size: int) -> None:
        records = self.records[self.read : self.read + size]
        self.read += len(records)
        heard = self.stream.take(records, after=self.now.sequence)
        if heard:
            told = [Told(item.evidence, item.microseconds / 1e6) for item in tallied(heard)]
            self.now = with_lines(self.now, heard[-1].sequence, told, CATALOG, told[-1].at)

    def finish(self) -> Diagnosis:
        self.batch(len(self.records))
        return replace(judged(caught_up(self.now, CATALOG, END), CATALOG, END), readings=())


# No sum of these lies at the edge of a window of the casebook.
GAPS = st.sampled_from((0.0, 0.0, 2.3, 7.1, 23.7, 47.9, 71.3, 411.7))
STEPS = st.lists(st.tuples(st.sampled_from(TEXTS), GAPS), min_size=1, max_size=30)
LIVES = st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["read", "write", "kill"])), max_size=20)


def told(diagnosis: Diagnosis) -> list[tuple[object, ...]]:
    """What the cases say. Their keys may differ: a fault that nobody was told of yet may still change its name."""
    return sorted((case.code, case.device, case.devices, case.count, case.first_seen) for case in diagnosis.book.cases)


@settings(max_examples=60)
@given(STEPS, LIVES)
def test_nothing_is_lost_or_repeated(steps: list[tuple[str, float]], lives: list[tuple[int, str]]) -> None:
    at, records = 100.0, []
    for sequence, (text, gap) in enumerate(steps):
        at += gap
        records.append(b"4,%d,%d,-;%s" % (sequence, round(at * 1e6), text.encode()))
    spared = Agent(records)
    for _ in records:
        spared.batch(1)
    killed = Agent(records)
    for size, event in lives:
        killed.batch(size)
        if event == "write":
            killed.written = killed.now
        elif event == "kill":
            killed.start()
    one, other = spared.finish(), killed.finish()
    assert told(other) == told(one)
    assert other.book.history == one.book.history
