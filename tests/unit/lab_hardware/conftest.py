from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.lab_hardware.machine_room import SleepingPower


@pytest.fixture
def power(tmp_path: Path) -> Iterator[SleepingPower]:
    room = SleepingPower(tmp_path)
    yield room
    room.close()
