"""Counters that only ever rise: what counts is how much, within which time, and never their value.

A counter keeps its value over reboots and jobs, is set back by whoever likes to, and stops at its end. So the first
value is nobody's fault, a fall begins anew, and one that stands at its end says nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.core.health import Evidence

HOUR, MINUTE = 3600.0, 60.0


@dataclass(frozen=True, slots=True)
class Counter:
    """The last value of a counter, and by how much it rose in which minute of the last hour."""

    last: int
    rises: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CounterRule:
    """A rise of more than ``limit`` within ``seconds`` is evidence of ``code``."""

    counter: str
    limit: int
    seconds: float
    code: str


# NVIDIA/NVSentinel's counter rules. A port that loses its link, packets or credit even once does so under a job.
PORT_RULES = (
    CounterRule("link_downed", 0, HOUR, "counter_fatal"),
    CounterRule("excessive_buffer_overrun_errors", 0, HOUR, "counter_fatal"),
    CounterRule("local_link_integrity_errors", 0, HOUR, "counter_fatal"),
    CounterRule("rnr_nak_retry_err", 0, HOUR, "counter_fatal"),
    CounterRule("symbol_error", 120, HOUR, "counter_fatal"),
    CounterRule("symbol_error", 600, MINUTE, "counter_degraded"),
    CounterRule("link_error_recovery", 5, MINUTE, "counter_degraded"),
)
PORT_COUNTERS = tuple(dict.fromkeys(rule.counter for rule in PORT_RULES))
# Width of each field in bits (InfiniBand Architecture Specification, PortCounters); absent: never at its end.
_WIDTH_END = {
    "link_downed": 255,
    "excessive_buffer_overrun_errors": 15,
    "local_link_integrity_errors": 15,
    "symbol_error": 65535,
    "link_error_recovery": 255,
}


def counted(before: Counter | None, value: int, now: float) -> Counter:
    """The counter after it was read as ``value`` at ``now`` (seconds since boot)."""
    if before is None or value < before.last:
        return Counter(value, before.rises if before else ())
    rises = tuple((at, rise) for at, rise in before.rises if now - at < HOUR)
    if value == before.last:
        return Counter(value, rises)
    if rises and now - rises[-1][0] < MINUTE / 2:  # one entry for half a minute bounds what is kept
        at, rise = rises[-1]
        return Counter(value, (*rises[:-1], (at, rise + value - before.last)))
    return Counter(value, (*rises, (now, value - before.last)))


def risen(counter: Counter, now: float, seconds: float) -> int:
    """By how much the counter rose within the last ``seconds``."""
    return sum(rise for at, rise in counter.rises if now - at < seconds)


def counter_evidence(port: str, counters: Mapping[str, Counter], now: float) -> list[Evidence]:
    """What the counters of one port show, the gravest of each only; and which of them can show nothing more."""
    found: dict[str, Evidence] = {}
    for rule in PORT_RULES:
        counter = counters.get(rule.counter)
        if counter is None or rule.counter in found:
            continue
        rise = risen(counter, now, rule.seconds)
        if rise > rule.limit:
            text = f"{rule.counter} of {port} rose by {rise} within {rule.seconds / MINUTE:.0f} min"
            found[rule.counter] = Evidence("ib", rule.code, subject=f"{port} {rule.counter}", line=text)
    for name, counter in counters.items():
        if counter.last == _WIDTH_END.get(name):
            text = f"{name} of {port} stands at its end, {counter.last}"
            found[f"{name} end"] = Evidence("ib", "counter_saturated", subject=f"{port} {name}", line=text)
    return list(found.values())
