"""What a device has had before, for seven days: a part that fails again is known, whatever node it serves by then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.core.fault_catalog import LONGEST_WINDOW, Repeat
from everstep.core.occurrences import Occurrence

MAX_OCCURRENCES = 512  # a bound on what is stored
MAX_OF_ONE = (
    16  # of one code on one device, more than any row counts to: a job that keeps crashing leaves room for others
)
MAX_LINEAGES = 8  # jobs remembered of one episode; two already tell what there is to tell
UNRELATED_WINDOW = 86400.0  # seconds within which two unrelated jobs on one GPU accuse it
_SAME = 60.0  # seconds: what is closer together than this, in one boot, is one episode


def with_occurrence(history: tuple[Occurrence, ...], new: Occurrence) -> tuple[Occurrence, ...]:
    """The history with one more episode; a sighting of an episode that is already in it adds its jobs only."""
    device, code = new.device, new.code
    mine = [index for index, old in enumerate(history) if old.code == code and old.device == device]
    for index in mine:
        old = history[index]
        if old.boot_id == new.boot_id and abs(old.at - new.at) <= _SAME:
            lineages = tuple(dict.fromkeys((*old.lineages, *new.lineages)))[:MAX_LINEAGES]
            same = replace(new, at=min(old.at, new.at), lineages=lineages)
            return history if same == old else (*history[:index], same, *history[index + 1 :])
    if len(mine) >= MAX_OF_ONE:
        history = (*history[: mine[0]], *history[mine[0] + 1 :])
    if not history or history[-1].at <= new.at:
        return (*history, new)[-MAX_OCCURRENCES:]
    return tuple(sorted((*history, new), key=lambda item: item.at)[-MAX_OCCURRENCES:])


def kept(history: tuple[Occurrence, ...], now: float) -> tuple[Occurrence, ...]:
    """Without what is older than seven days, or so far ahead that a clock must have gone wrong then."""
    oldest, latest = now - LONGEST_WINDOW, now + LONGEST_WINDOW
    if not history or (history[0].at >= oldest and history[-1].at <= latest):
        return history
    return tuple(item for item in history if oldest <= item.at <= latest)


def joined(histories: Iterable[tuple[Occurrence, ...]], now: float) -> tuple[Occurrence, ...]:
    """Several histories as one: a GPU's past on one node and its present on another."""
    found: dict[tuple[str, str, float], Occurrence] = {}
    for history in histories:
        for item in history:
            key = (item.device, item.code, item.at)
            lineages = found[key].lineages if key in found else ()
            found[key] = replace(item, lineages=tuple(dict.fromkeys((*lineages, *item.lineages))))
    return kept(tuple(sorted(found.values(), key=lambda item: item.at))[-MAX_OCCURRENCES:], now)


def times(history: Iterable[Occurrence], device: str, code: str, repeat: Repeat, now: float) -> int:
    """How many episodes of ``code`` the device has had within the window of ``repeat``."""
    return sum(item.device == device and item.code == code and abs(now - item.at) <= repeat.seconds for item in history)


def unrelated_jobs(history: Iterable[Occurrence], device: str, code: str, now: float) -> tuple[str, ...]:
    """Lineages of the jobs that ``code`` has hit on the device within a day, each once.

    An episode with several jobs on the device counts as one of them: which one did it cannot be told.
    """
    seen: list[str] = []
    for item in history:
        mine = item.device == device and item.code == code and abs(now - item.at) <= UNRELATED_WINDOW
        if mine and item.lineages and not any(lineage in seen for lineage in item.lineages):
            seen.append(item.lineages[0])
    return tuple(seen)
