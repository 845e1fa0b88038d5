"""A GPU that moves takes its past with it: what other nodes remember of it is told to the node that has it now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from everstep.core.correlation.history import MAX_OCCURRENCES, joined
from everstep.core.health import NodeReport
from everstep.core.node_verdict import SILENT_AFTER
from everstep.core.occurrences import Occurrence


def inheritances(now: float, reports: Mapping[str, NodeReport]) -> dict[str, tuple[Occurrence, ...]]:
    """By node, what its agent is to be told of its GPUs; only nodes that have been told something else so far.

    A serial number that two agents report at the same time names no part (some boards have none, or all the same), so
    it has no past. What the agent has taken over into its own history need not be told any more.

    Jobs are not told: they are another agent's word, and with a stolen token two made-up ones would make a GPU guilty
    of what the programs of its users print.
    """
    present = {name: _present(now, report) for name, report in reports.items()}
    owners = Counter(serial for serials in present.values() for serial in serials)
    moved = {serial: name for name, serials in present.items() for serial in serials if owners[serial] == 1}
    told: dict[str, list[Occurrence]] = defaultdict(list)
    for name, report in reports.items():
        for item in report.history:
            holder = moved.get(item.device)
            if holder is not None and holder != name:
                told[holder].append(replace(item, lineages=()))
    wanted = {name: _unknown(now, reports[name], items) for name, items in told.items()}
    return {
        name: wanted.get(name, ())
        for name, report in reports.items()
        if present[name] and report.inherited != wanted.get(name, ())
    }


def _present(now: float, report: NodeReport) -> frozenset[str]:
    """Serials of the GPUs that are in the node now; an agent that is silent tells of the past."""
    if report.heartbeat is None or now - report.heartbeat > SILENT_AFTER:
        return frozenset()
    return frozenset(gpu.serial for gpu in report.gpus if gpu.serial and not gpu.lost)


def _unknown(now: float, report: NodeReport, items: list[Occurrence]) -> tuple[Occurrence, ...]:
    known = {(item.device, item.code, item.at) for item in report.history}
    fresh = tuple(item for item in items if (item.device, item.code, item.at) not in known)
    return joined((fresh,), now)[-MAX_OCCURRENCES:]
