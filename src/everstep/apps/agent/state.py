"""The agent's one piece of state: the diagnosis, and the wake-up for whoever publishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.core.diagnosis import Diagnosis, judged, with_history
from everstep.core.fault_catalog import Catalog
from everstep.core.health import accuses
from everstep.core.occurrences import Occurrence

TICK = 1.0  # seconds between looks whether something has waited long enough
_JUDGE_EVERY = 60.0  # seconds; windows slide and quiet cases are forgotten, neither of them by an event


class State:
    """The diagnosis as it stands now. ``urgent`` is set when what a reader of NodeHealth would do could change."""

    def __init__(self, diagnosis: Diagnosis, catalog: Catalog, now: Callable[[], float]) -> None:
        self.catalog = catalog
        self._clock = now
        self._judged_at = self.now()
        self.diagnosis = judged(diagnosis, catalog, self._judged_at)
        self.changed = asyncio.Event()
        self.urgent = asyncio.Event()
        self.look = asyncio.Event()  # set when the log accuses a GPU: the driver is asked without waiting for its turn
        self.changed.set()
        self.urgent.set()

    def now(self) -> float:
        """Unix seconds, to the microsecond: what is stored must compare equal when it is read again."""
        return round(self._clock(), 6)

    def update(self, diagnosis: Diagnosis) -> None:
        """Takes a new diagnosis over; one that says nothing new wakes nobody."""
        before = self.diagnosis
        if diagnosis is before:
            return
        self.diagnosis = diagnosis
        if _accusations(diagnosis) - _accusations(before):
            self.look.set()
        if _said(diagnosis) == _said(before):
            return
        self.changed.set()
        if _gist(diagnosis) != _gist(before):
            self.urgent.set()

    def inherit(self, occurrences: Sequence[Occurrence]) -> None:
        """Takes over what this node's GPUs had elsewhere."""
        self.update(with_history(self.diagnosis, occurrences, self.catalog, self.now()))

    async def keep_time(self, tick: float = TICK) -> None:
        """Judges again what only time changes: a line that nothing explained in time stands for itself."""
        while True:
            await asyncio.sleep(tick)
            now = self.now()
            waiting = any(case.pending_until for case in self.diagnosis.book.cases)
            if waiting or not 0 <= now - self._judged_at < _JUDGE_EVERY:  # a clock may also be set back
                self._judged_at = now
                self.update(judged(self.diagnosis, self.catalog, now))


def _said(diagnosis: Diagnosis) -> Diagnosis:
    """What is stored. How often a broken source was tried is written when something else is."""
    sources = tuple(replace(source, restarts=0) for source in diagnosis.sources)
    return replace(diagnosis, readings=(), asked_at=0.0, behind=False, sources=sources)


def _accusations(diagnosis: Diagnosis) -> frozenset[str]:
    return frozenset(fault.key for fault in diagnosis.faults if accuses(fault))


def _gist(diagnosis: Diagnosis) -> object:
    """What others act on; counts and positions are not part of it, so that a storm costs few writes."""
    faults = [replace(fault, count=0, first_seen=0.0, last_seen=0.0, line="") for fault in diagnosis.faults]
    return diagnosis.boot_id, faults, diagnosis.gpus, [name for name, _ in diagnosis.broken]
