"""The one error of the lab."""

from __future__ import annotations


class LabError(Exception):
    """Something the user can read in one line: what is wrong, and how to mend it."""
