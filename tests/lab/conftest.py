"""The lab of a test run: one for all its tests, with Everstep on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from everstep.lab.cluster import Lab, remove
from everstep.lab.layout import LabConfig, existing_labs
from everstep.lab.setup import plan_lab

_PREFIX = "pytest-"


def _remove_abandoned() -> None:
    """Ends the labs of earlier test runs that were killed."""
    for name in existing_labs():
        owner = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            remove(name)


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with Everstep: sys-1, gpu-1 and gpu-2 in pool "main", gpu-3 a warm spare; repairs take 5 s.

    A test that changes it puts it back, or takes a lab of its own. `EVERSTEP_KEEP_LAB=1` keeps it for a look;
    `EVERSTEP_TEST_LAB=name` runs the tests in a lab that is up already.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # or every process would bring up a lab of its own, and share its tests
        assert any("@" in item.nodeid for item in request.session.items), (
            "tests on a lab must stay together: pytest --dist loadgroup, with a pytest-xdist that fits this pytest"
        )
    if name := os.environ.get("EVERSTEP_TEST_LAB"):
        yield Lab.find(name)
        return
    _remove_abandoned()
    config = LabConfig(name=f"{_PREFIX}{os.getpid()}", repair_seconds=5)
    running = Lab.up(plan_lab(config))
    try:
        yield running
    finally:
        if not os.environ.get("EVERSTEP_KEEP_LAB"):
            running.down()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs a lab needs root; without it those tests say so instead of failing one by one."""
    if os.geteuid() == 0:
        return
    for item in items:
        with suppress(AttributeError):
            if item.get_closest_marker("lab"):
                item.add_marker(pytest.mark.skip(reason="a lab needs root: `sudo -E make test`"))
