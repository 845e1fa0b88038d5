"""The kernel log of this boot, read from its start by the rules of an agent that has watched it all the time.

What belongs together is one case, and a case is over on proof, such as a link that came back or a driver that no longer
wants a recovery. So an old line does not speak against the node for ever, and a broken adapter is not forgotten because
its line is an hour old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.correlation.casebook import settled
from everstep.core.correlation.groups import SOLO_WAIT
from everstep.core.correlation.proof import Answer, with_proof
from everstep.core.correlation.tally import tallied
from everstep.core.correlation.verdicts import accusing, faults
from everstep.core.diagnosis import Diagnosis, Told, with_lines
from everstep.core.fault_catalog import Catalog
from everstep.core.health import Fault, Gpu, Severity
from everstep.core.kernel_lines.stream import RecordStream
from everstep.core.kmsg_record import parse_record

_THIS = "this boot"  # no line of another one is in the log, so its id is of no matter


@dataclass(frozen=True, slots=True)
class Boot:
    """What the lines of a log are read against.

    Attributes:
        now: Unix seconds.
        uptime: seconds on the kernel's own clock now.
        gpus: the inventory; empty when the driver does not answer.
        window: seconds back from now that count; None for the whole boot.
        allow_injected: whether records that programs wrote count.
    """

    catalog: Catalog
    now: float
    uptime: float
    gpus: tuple[Gpu, ...] = ()
    window: float | None = None
    allow_injected: bool = False


class BootLog:
    """Reads the log batch by batch; storms cost no more here than in the agent."""

    def __init__(self, boot: Boot) -> None:
        oldest = 0.0 if boot.window is None else max(0.0, boot.uptime - boot.window)
        self._boot = boot
        self._stream = RecordStream(allow_injected=boot.allow_injected, not_before=int(oldest * 1e6))
        self._diagnosis = Diagnosis(_THIS, gpus=boot.gpus, behind=True)
        self._records = 0
        self._overwritten: int | None = None  # records that the ring buffer held before its oldest one now

    def take(self, records: Sequence[bytes]) -> None:
        """The next records of ``/dev/kmsg``. Bytes that are no record say nothing."""
        boot = self._boot
        self._records += len(records)
        if self._overwritten is None and records and (oldest := parse_record(records[0])) is not None:
            self._overwritten = oldest.sequence
        if heard := self._stream.take(records):
            told = [Told(item.evidence, self._moment(item.microseconds)) for item in tallied(heard)]
            self._diagnosis = with_lines(self._diagnosis, heard[-1].sequence, told, boot.catalog, boot.now)

    def standing(self, *, passed: bool) -> tuple[Fault, ...]:
        """The faults that are not over.

        Args:
            passed: whether every other source answered and accuses nobody; without that, nothing is proof.
        """
        boot = self._boot
        book = settled(self._diagnosis.book, boot.now + SOLO_WAIT)  # nobody waits for further lines: all of it stands
        answer = Answer(boot.gpus, _THIS, asked_at=boot.now, passed=passed)
        book = with_proof(book, answer, boot.now, accusing(book, boot.catalog, boot.now))
        return tuple(fault for fault in faults(book, boot.catalog, boot.now) if fault.severity is not Severity.INFO)

    @property
    def remark(self) -> str:
        """How much of the boot was read, for the reader of a check."""
        overwritten = f"; the first {self._overwritten} were overwritten before" if self._overwritten else ""
        skipped = f"; {self._stream.skipped} could not be judged" if self._stream.skipped else ""
        return f"nothing is wrong in {self._records} records of this boot{overwritten}{skipped}"

    def _moment(self, microseconds: int) -> float:
        """Unix seconds of the kernel's time."""
        return self._boot.now - max(0.0, self._boot.uptime - microseconds / 1e6)
