"""Two streams of tests side by side: those on the lab, which mostly wait, and all others, which give way to them."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

_GIVING_WAY = 19  # the least urgent; nothing that others measure the time of is slowed by it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share the lab go to one process (``pytest --dist loadgroup``), which starts with them."""
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.xdist_group("lab"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where several processes run tests, what needs no lab leaves the CPUs to what does."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        with suppress(PermissionError):  # without root a process that has given way stays so
            os.setpriority(os.PRIO_PROCESS, 0, 0 if item.get_closest_marker("lab") else _GIVING_WAY)
