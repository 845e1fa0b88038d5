from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import (
    IDLE_CELSIUS,
    IDLE_WATTS,
    MEMORY_TOTAL_MIB,
    PEAK_CELSIUS,
    PEAK_WATTS,
    Load,
    SimulatedGpu,
    new_identity,
)
from everstep.lab.hardware.xids import effect_of


def gpu() -> SimulatedGpu:
    return SimulatedGpu(new_identity(0))


def run(subject: SimulatedGpu, busy: float, seconds: int) -> None:
    for _ in range(seconds):
        subject.advance(Load(busy, 1000.0), 1.0)


def test_a_busy_gpu_gets_busy_within_seconds_and_warm_later() -> None:
    subject = gpu()
    run(subject, 1.0, 3)
    assert subject.reading().utilization_percent >= 95
    early = subject.reading().temperature_c
    run(subject, 1.0, 60)
    assert subject.reading().power_watts == pytest.approx(PEAK_WATTS, abs=1)
    assert subject.reading().temperature_c > early + 10


def test_work_that_ends_shows_as_a_fall_to_idle() -> None:
    subject = gpu()
    run(subject, 1.0, 30)
    run(subject, 0.0, 6)
    assert subject.reading().utilization_percent <= 1
    assert subject.reading().power_watts < 120


@given(st.lists(st.tuples(st.floats(0, 64), st.floats(0, 1e6), st.floats(0.001, 10)), max_size=50))
def test_gauges_stay_within_what_the_device_can_show(steps: list[tuple[float, float, float]]) -> None:
    subject = gpu()
    for busy, memory, seconds in steps:
        subject.advance(Load(busy, memory), seconds)
    seen = subject.reading()
    assert 0 <= seen.utilization_percent <= 100
    assert IDLE_WATTS <= seen.power_watts <= PEAK_WATTS
    assert IDLE_CELSIUS <= seen.temperature_c <= PEAK_CELSIUS
    assert 0 <= seen.memory_used_mib <= MEMORY_TOTAL_MIB


def test_a_lost_gpu_shows_nothing_although_its_processes_still_run() -> None:
    subject = gpu()
    run(subject, 1.0, 10)
    subject.fail(lost=True, recovery_action="reboot")
    run(subject, 1.0, 10)
    seen = subject.reading()
    assert (seen.utilization_percent, seen.memory_used_mib, seen.power_watts) == (0, 0, 0.0)
    assert (seen.lost, seen.recovery_action, subject.healthy) == (True, "reboot", False)


def test_a_milder_fault_takes_nothing_back() -> None:
    subject = gpu()
    subject.fail(lost=True, recovery_action="reboot")
    subject.fail(lost=False, recovery_action="none")
    assert (subject.lost, subject.recovery_action) == (True, "reboot")


def test_new_parts_differ_in_identity_but_sit_in_their_slot() -> None:
    first, second = new_identity(1), new_identity(1)
    assert first.serial != second.serial
    assert first.uuid != second.uuid
    assert first.pci == second.pci == "0000:02:00"
    assert len(first.uuid) <= 63  # the device plugin's limit for an id


@pytest.mark.parametrize(("xid", "lost", "action"), [(79, True, "reboot"), (48, False, "reset"), (13, False, "none")])
def test_each_xid_has_its_own_effect(xid: int, lost: bool, action: str) -> None:
    effect = effect_of(xid)
    assert (effect.lost, effect.recovery_action) == (lost, action)


def test_a_power_cycle_mends_the_driver_and_not_the_part() -> None:
    gpu = SimulatedGpu(new_identity(0))
    for state in GpuState:
        if state is not GpuState.WELL:
            gpu.take(state)
    gpu.clear()
    assert gpu.states == {GpuState.REMAP_FAILED, GpuState.SRAM_ERRORS, GpuState.INFOROM_DAMAGED}
    assert gpu.healthy
    gpu.take(GpuState.WELL)
    assert not gpu.states
