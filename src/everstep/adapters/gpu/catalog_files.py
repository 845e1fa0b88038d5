"""The fault catalogue that is shipped with the package, and a site's own table on top of it."""

from __future__ import annotations

from pathlib import Path

import everstep.core
from everstep.core.errors import InvalidInput
from everstep.core.fault_catalog import Catalog, load_catalog
from everstep.core.site_faults import with_site_rows


def shipped_catalog() -> Catalog:
    """Reads every table in ``core/catalog``. InvalidInput names the table and the row that is wrong."""
    folder = Path(everstep.core.__file__).parent / "catalog"
    return load_catalog({path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.csv"))})


def catalog_with(site: Path | None) -> Catalog:
    """The shipped catalogue with the rows of a site's table, if there is one.

    Raises:
        InvalidInput: the table cannot be read, or a row is wrong; the text says which and how.
    """
    catalog = shipped_catalog()
    if site is None:
        return catalog
    try:
        text = site.read_text(encoding="utf-8-sig")  # spreadsheets begin a CSV file with a byte order mark
    except (OSError, UnicodeDecodeError) as why:
        raise InvalidInput(f"cannot read the site's fault table {site}: {why}") from why
    return with_site_rows(catalog, text, site.name)
