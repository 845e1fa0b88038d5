"""Lines as sightings of one node with eight GPUs, and what a casebook makes of them."""

from __future__ import annotations

from dataclasses import replace

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.correlation.casebook import Casebook, settled, with_sighting
from everstep.core.correlation.sighting import Job, Sighting, placed_sighting
from everstep.core.correlation.verdicts import accusing, faults
from everstep.core.health import Fault, Gpu
from everstep.core.kernel_lines.parser import parse_line

CATALOG = shipped_catalog()
GPUS = tuple(Gpu(index, f"GPU-{index}", f"s{index}", f"0000:{index + 1:02x}:00") for index in range(8))
HOUR, DAY = 3600.0, 86400.0
TRAIN = Job("7", "ann/train")
OTHER = Job("8", "bob/eval")


def sees(line: str, at: float, *jobs: Job, boot: str = "boot-1", cancelled: bool = False) -> Sighting:
    evidence = parse_line(line, companions=True, allow_injected=True)
    assert evidence is not None
    return replace(placed_sighting(evidence, at, boot, GPUS, jobs), cancelled=cancelled)


def xid(code: int, at: float, *jobs: Job, gpu: int = 0, rest: str = "", boot: str = "boot-1") -> Sighting:
    return sees(f"NVRM: Xid (PCI:0000:{gpu + 1:02x}:00): {code}, pid=1, name=a, {rest}", at, *jobs, boot=boot)


def after(*sightings: Sighting, book: Casebook | None = None) -> Casebook:
    book = book or Casebook()
    for seen in sightings:
        book = with_sighting(settled(book, seen.at), seen, accusing(book, CATALOG, seen.at))
    return book


def told(book: Casebook, now: float) -> list[Fault]:
    return list(faults(settled(book, now), CATALOG, now))


def gist(book: Casebook, now: float) -> list[tuple[str, str, int]]:
    return [(fault.key, fault.action.value, fault.count) for fault in told(book, now)]
