"""The fault catalogue that is shipped with the package."""

from __future__ import annotations

from pathlib import Path

import everstep.core
from everstep.core.fault_catalog import Catalog, load_catalog


def shipped_catalog() -> Catalog:
    """Reads every table in ``core/catalog``. InvalidInput names the table and the row that is wrong."""
    folder = Path(everstep.core.__file__).parent / "catalog"
    return load_catalog({path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.csv"))})
