"""The agent's one piece of state: the diagnosis, and the wake-up for whoever publishes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from everstep.core.diagnosis import Diagnosis, accuses


class State:
    """The diagnosis as it stands now. ``urgent`` is set when what a reader of NodeHealth would do could change."""

    def __init__(self, diagnosis: Diagnosis, now: Callable[[], float]) -> None:
        self.diagnosis = diagnosis
        self.now = now
        self.changed = asyncio.Event()
        self.urgent = asyncio.Event()
        self.look = asyncio.Event()  # set when the log accuses a GPU: the driver is asked without waiting for its turn
        self.changed.set()
        self.urgent.set()

    def update(self, diagnosis: Diagnosis) -> None:
        """Takes a new diagnosis over; one that says nothing new wakes nobody."""
        before = self.diagnosis
        self.diagnosis = diagnosis
        if _accusations(diagnosis) - _accusations(before):
            self.look.set()
        if _said(diagnosis) == _said(before):
            return
        self.changed.set()
        if _gist(diagnosis) != _gist(before):
            self.urgent.set()


def _said(diagnosis: Diagnosis) -> Diagnosis:
    """What is stored."""
    return replace(diagnosis, suspected=())


def _accusations(diagnosis: Diagnosis) -> frozenset[str]:
    return frozenset(fault.key for fault in diagnosis.faults if accuses(fault))


def _gist(diagnosis: Diagnosis) -> object:
    """What others act on; counts and positions are not part of it, so that a storm costs few writes."""
    faults = [replace(fault, count=0, first_seen=0.0, last_seen=0.0, line="") for fault in diagnosis.faults]
    return diagnosis.boot_id, faults, diagnosis.gpus, diagnosis.broken
