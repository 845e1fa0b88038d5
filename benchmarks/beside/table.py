"""The readings as a table: medians, and each peer's ratio to ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from beside.lines import field_cases
from beside.measures import Readings, Storm

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of each agent; ``ratio`` says whether peers are set against the first agent."""

    title: str
    value: Callable[[Readings], float | None]
    shown: Callable[[float], str]
    ratio: bool = True


def percentile(values: Sequence[float | None], share: float) -> float | None:
    """Nearest rank; a report that never came counts as later than all others (None)."""
    if not values:
        return None
    ordered = sorted(values, key=lambda value: float("inf") if value is None else value)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float | None]) -> float | None:
    return percentile(values, 0.5)


def milliseconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB"


def rows(storms: Sequence[str]) -> list[Row]:
    """The table's rows for storms of these names."""
    found = [
        Row("line to report, p50", lambda one: percentile(one.latency, 0.5), milliseconds),
        Row("line to report, p99", lambda one: percentile(one.latency, 0.99), milliseconds),
        Row("probes without a report", _unseen, _whole, ratio=False),
        Row("idle, share of one core", lambda one: median(one.idle_share), lambda v: f"{v:.2%}"),
        Row("idle, resident", lambda one: median(one.resident), megabytes),
        Row("idle, proportional", lambda one: median(one.proportional), megabytes),
        Row("start to first word", lambda one: median(one.start), milliseconds),
    ]
    for name in storms:
        found += [
            Row(f"{name}: other faults lost", _of(name, _lost, sum), _whole, ratio=False),
            Row(f"{name}: the next fault", _of(name, lambda storm: storm.after, median), milliseconds),
            Row(f"{name}: processor", _of(name, lambda storm: storm.cost.processor, median), lambda v: f"{v:.2f} s"),
            Row(f"{name}: highest memory", _of(name, lambda storm: storm.cost.peak, max), megabytes),
        ]
    return found


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _unseen(one: Readings) -> float | None:
    return float(one.latency.count(None)) if one.latency else None


def _lost(storm: Storm) -> float:
    return float(storm.others.count(None))


def _of(
    name: str,
    value: Callable[[Storm], float | None],
    summary: Callable[[list[float | None]], float | None] | Callable[[list[float]], float],
) -> Callable[[Readings], float | None]:
    def read(one: Readings) -> float | None:
        values = [value(storm) for storm in one.storms.get(name, [])]
        return summary(values) if values else None  # type: ignore[arg-type]

    return read


def rendered(readings: Mapping[str, Readings], titles: Mapping[str, str], storms: Sequence[str]) -> str:
    """A markdown table; the first agent is ours, and a peer's figure has its ratio to ours behind it."""
    names = list(readings)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines.append("| version | " + " | ".join(titles[name] for name in names) + " |")
    lines.append("| probes are | " + " | ".join(f"{readings[name].family} lines" for name in names) + " |")
    for row in rows(storms):
        values = [row.value(readings[name]) for name in names]
        if any(value is not None for value in values):
            lines.append(f"| {row.title} | " + " | ".join(_cells(row, values)) + " |")
    return "\n".join([*lines, *_missed(readings)])


def _cells(row: Row, values: Sequence[float | None]) -> list[str]:
    ours, cells = values[0], list[str]()
    for number, value in enumerate(values):
        cell = MISSING if value is None else row.shown(value)
        if number and row.ratio and value is not None and ours:
            cell += f" ({value / ours:.1f}x)"
        cells.append(cell)
    return cells


def _missed(readings: Mapping[str, Readings]) -> list[str]:
    of_field, lines = Counter(case.family for case in field_cases()), list[str]()
    for family in next(iter(readings.values())).missed:
        counts = [str(len(one.missed[family])) if family in one.missed else MISSING for one in readings.values()]
        what = "healthy lines reported" if family == "none" else f"{family} lines missed"
        what += f", of {of_field[family]}"
        lines.append(f"| {what} | " + " | ".join(counts) + " |")
    return lines
