"""The tasks that feed the diagnosis. A source that breaks is noted, opened again, and never read as healthy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path

from everstep.adapters.gpu.kmsg import open_kernel_log
from everstep.apps.agent.state import State
from everstep.core.diagnosis import unwell, with_evidence, with_gpus, with_source
from everstep.core.errors import EverstepError
from everstep.core.fault_catalog import Catalog
from everstep.core.faults import classify
from everstep.core.health import Part, Severity
from everstep.core.kernel_lines.folding import NOTHING, follow
from everstep.core.kmsg_record import parse_record
from everstep.ports import Batch, GpuReader

KERNEL_LOG, GPUS = "kernel log", "GPUs"
GPU_PERIOD = 5.0  # seconds between two questions to the driver
GPU_DEADLINE = 10.0  # seconds; NVML hangs for good when the GPU's own firmware has died (XID 119)
SETTLE = 0.3  # seconds from the line to the question: the driver marks the GPU a moment after it printed the line
_REOPEN_AFTER = 0.5
_REOPEN_LIMIT = 10.0

log = logging.getLogger(__name__)


class KernelLogTask:
    """Follows the kernel log and turns its lines into faults.

    A log that was replaced or broke off is opened again and read from its start; the record numbers in the diagnosis
    keep what was counted before from being counted again.

    Args:
        allow_injected: count lines that user space wrote, marked as injected.
        not_before: kernel time in microseconds; older records are passed over. On a node that nobody has watched so far
            an old line says nothing of today: the GPU may have been reset since. Its state now, the driver tells.
    """

    def __init__(
        self, state: State, catalog: Catalog, path: Path, *, allow_injected: bool = False, not_before: int = 0
    ) -> None:
        self._state = state
        self._catalog = catalog
        self._path = path
        self._allow_injected = allow_injected
        self._not_before = not_before
        self._begun = NOTHING  # what the records so far have begun to tell
        self.tried = asyncio.Event()  # set once the log was read to its end, or found broken

    async def run(self) -> None:
        delay = _REOPEN_AFTER
        while True:
            try:
                reader = open_kernel_log(self._path)
                self._begun = NOTHING
                try:
                    while (batch := reader.available()).records:
                        self.take(batch)
                        await asyncio.sleep(0)
                    self._note(None)
                    delay = _REOPEN_AFTER
                    while True:
                        self.take(await reader.read())
                        await asyncio.sleep(0)  # a log that storms must not keep the heartbeat waiting
                finally:
                    reader.close()
            except EverstepError as why:
                log.warning("kernel log broken: %s", why)
                self._note(str(why))
                await asyncio.sleep(delay)
                delay = min(delay * 2, _REOPEN_LIMIT)

    def _note(self, why: str | None) -> None:
        self._state.update(with_source(self._state.diagnosis, KERNEL_LOG, why))
        self.tried.set()

    def take(self, batch: Batch) -> None:
        """Judges every line of a batch."""
        diagnosis = self._state.diagnosis
        if batch.lost:
            log.warning("%d kernel records were overwritten before they were read", batch.lost)
            diagnosis = replace(diagnosis, lost_records=diagnosis.lost_records + batch.lost)
        for data in batch.records:
            self._begun, evidence = follow(self._begun, data, allow_injected=self._allow_injected)
            if evidence is None or (record := parse_record(data)) is None or record.microseconds < self._not_before:
                continue
            fault = classify(self._catalog, evidence)
            if evidence.part is Part.DETAIL or (fault.severity is Severity.INFO and fault.kind != "xid"):
                continue  # a link that came back, an error that was corrected: worth a count elsewhere, no fault
            diagnosis = with_evidence(diagnosis, record.sequence, fault, self._state.now())
        self._state.update(diagnosis)


class GpuTask:
    """Asks the driver for its GPUs every few seconds, and at once when the log accuses one."""

    def __init__(self, state: State, catalog: Catalog, reader: GpuReader, period: float = GPU_PERIOD) -> None:
        self._state = state
        self._catalog = catalog
        self._reader = reader
        self._period = period

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._state.look.wait()
                    await asyncio.sleep(SETTLE)
            self._state.look.clear()
            await self.look()

    async def look(self) -> None:
        """Asks once."""
        try:
            async with asyncio.timeout(GPU_DEADLINE):
                reading = await self._reader.gpus()
        except TimeoutError:
            self._broken(f"the driver did not answer within {GPU_DEADLINE:.0f} s")
        except EverstepError as why:
            self._broken(str(why))
        else:
            diagnosis = with_source(self._state.diagnosis, GPUS, None)
            judged = [(gpu, classify(self._catalog, evidence)) for gpu, evidence in unwell(reading)]
            self._state.update(with_gpus(diagnosis, reading, judged, self._state.now()))

    def _broken(self, why: str) -> None:
        if (GPUS, why) not in self._state.diagnosis.broken:
            log.warning("GPUs cannot be read: %s", why)
        self._state.update(with_source(self._state.diagnosis, GPUS, why))
