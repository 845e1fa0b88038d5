"""The task that follows the kernel log and turns what it tells into cases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.apps.agent.state import State
from everstep.apps.agent.supervision import Supervisor
from everstep.core.correlation.sighting import Job
from everstep.core.correlation.tally import tallied
from everstep.core.diagnosis import Diagnosis, Told, caught_up, numbered, with_lines
from everstep.core.health import Evidence
from everstep.core.kernel_lines.stream import Heard, RecordStream
from everstep.ports import Batch, LineSource

_REOPEN_LIMIT = 10.0  # seconds: a log that was replaced is read again soon

log = logging.getLogger(__name__)


def nobody(evidence: Evidence) -> tuple[Job, ...]:
    """For an agent that cannot tell which job a process belongs to. No job is known, so none accuses a GPU."""
    return ()


class KernelLogTask:
    """Follows one log.

    A log that was replaced or broke off is opened again and read from its start; the record numbers in the diagnosis
    keep what was counted before from being counted again.

    Args:
        source: where the log is.
        stream: what is to be believed of it.
        jobs_of: the jobs that used the device that a line names.
    """

    def __init__(
        self,
        state: State,
        source: LineSource,
        stream: RecordStream,
        jobs_of: Callable[[Evidence], Sequence[Job]] = nobody,
    ) -> None:
        self._state = state
        self._source = source
        self._stream = stream
        self._jobs_of = jobs_of
        self._supervisor = Supervisor(state, source.name, _REOPEN_LIMIT)
        self.tried = self._supervisor.tried  # set once the log was read to its end, or found broken

    async def run(self) -> None:
        await self._supervisor.run(self._follow)

    async def _follow(self) -> None:
        reader = await self._source.open()
        self._stream.restart()
        self._state.update(numbered(self._state.diagnosis, self._source.numbering))
        try:
            clock = _Kernel(self._state)
            while (batch := reader.available()).records:
                self.take(batch, clock.moment)
                await asyncio.sleep(0)
            self._state.update(caught_up(self._state.diagnosis, self._state.catalog, self._state.now()))
            self._supervisor.works()
            while True:
                self.take(await reader.read(), self._live)
                await asyncio.sleep(0)  # a log that storms must not keep the heartbeat waiting
        finally:
            reader.close()

    def _live(self, microseconds: int) -> float:
        return self._state.now()

    def take(self, batch: Batch, moment: Callable[[int], float]) -> None:
        """Judges every record of a batch. ``moment`` makes Unix seconds of the kernel's microseconds."""
        diagnosis, skipped = self._state.diagnosis, self._stream.skipped
        heard = self._stream.take(batch.records, after=diagnosis.sequence)
        if batch.lost:
            log.warning("%d kernel records were overwritten before they were read", batch.lost)
            diagnosis = replace(diagnosis, lost_records=diagnosis.lost_records + batch.lost)
        if skipped := self._stream.skipped - skipped:
            log.warning("%d kernel records could not be judged and were passed over", skipped)
            diagnosis = replace(diagnosis, skipped_records=diagnosis.skipped_records + skipped)
        if heard:
            diagnosis = self._judged(diagnosis, heard, [self._told(item, moment) for item in tallied(heard)])
        self._state.update(diagnosis)

    def _judged(self, diagnosis: Diagnosis, heard: Sequence[Heard], told: Sequence[Told]) -> Diagnosis:
        """All of it together; where that fails one by one, without what fails: one line must not stop the others."""
        catalog, now, last = self._state.catalog, self._state.now(), heard[-1].sequence
        try:
            return with_lines(diagnosis, last, told, catalog, now)
        except Exception:
            log.exception("lines up to record %d cannot be judged together", last)
        for item in told:
            try:
                diagnosis = with_lines(diagnosis, diagnosis.sequence, [item], catalog, now)
            except Exception:
                log.warning("passed over: %s", item.evidence.line)
                diagnosis = replace(diagnosis, skipped_records=diagnosis.skipped_records + item.evidence.count)
        return replace(diagnosis, sequence=max(last, diagnosis.sequence))

    def _told(self, item: Heard, moment: Callable[[int], float]) -> Told:
        return Told(item.evidence, moment(item.microseconds), tuple(self._jobs_of(item.evidence)))


class _Kernel:
    """When records were written that an agent finds on its start.

    The kernel's clock is not corrected and drifts from the wall clock, so it only places what was not seen live; and
    nothing that was not counted yet is older than what was.
    """

    def __init__(self, state: State) -> None:
        book, boot_id = state.diagnosis.book, state.diagnosis.boot_id
        self._now = state.now()
        self._uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
        self._earliest = max((case.last_seen for case in book.cases if case.boot_id == boot_id), default=0.0)

    def moment(self, microseconds: int) -> float:
        """Unix seconds, to the microsecond."""
        age = max(0.0, self._uptime - microseconds / 1e6)
        return round(min(self._now, max(self._earliest, self._now - age)), 6)
