"""A folder that looks like the ``/sys`` and ``/proc`` of some machine."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.faults import judge
from everstep.core.health import Evidence

CATALOG = shipped_catalog()


class Tree:
    """Files by their path below the root, which is a machine's ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, text: object = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def folder(self, path: str) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def link(self, path: str, target: str) -> None:
        """A symbolic link at ``path`` to ``target``, also below the root."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)


class Time:
    """Seconds since boot, as a test sets them."""

    def __init__(self, now: float = 86400.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def shown(evidence: Iterable[Evidence]) -> list[tuple[str, str | None]]:
    """Code and subject (or address) of each; every one of them has its own row in the catalogue."""
    found = []
    for item in evidence:
        row = judge(CATALOG, item)
        assert row is not None, item
        assert row.code == item.code
        found.append((item.code, item.pci or item.subject))
    return found
