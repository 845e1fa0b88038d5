"""What of an answer of NVML is evidence, and what has to last before it is."""

from __future__ import annotations

import pytest

from everstep.adapters.gpu.nvml_reading import GpuAnswer, Judge, Reading

HOT, BRAKE, IDLE = 0x48, 0x88, 0x1
STEP = 15.0  # seconds between readings


def gpu(**fields: object) -> Reading:
    return Reading(gpus=[GpuAnswer(index=0, pci="0000:01:00.0", uuid="GPU-1", **fields)])  # type: ignore[arg-type]


def said_after(judge: Judge, readings: list[Reading], start: float = 0.0) -> list[str]:
    """Codes of the last reading."""
    said: list[str] = []
    for number, reading in enumerate(readings):
        said = [item.code for item in judge.evidence(reading, start + number * STEP)]
    return said


@pytest.mark.parametrize(("reasons", "code"), [(HOT, "gpu_thermal_slowdown"), (BRAKE, "gpu_power_brake")])
def test_a_slowdown_counts_when_it_lasts_ten_minutes(reasons: int, code: str) -> None:
    judge = Judge()
    assert said_after(judge, [gpu(reasons=reasons)] * 40) == []
    assert said_after(judge, [gpu(reasons=reasons)], 40 * STEP) == [code]
    assert said_after(judge, [gpu(reasons=IDLE)] * 18, 41 * STEP) == []


def test_a_slowdown_now_and_then_is_no_fault() -> None:
    every_other = [gpu(reasons=HOT), gpu(reasons=IDLE)] * 60
    assert said_after(Judge(), every_other) == []


def test_most_of_the_time_is_enough() -> None:
    most = [gpu(reasons=HOT), gpu(reasons=HOT), gpu(reasons=HOT), gpu(reasons=IDLE)] * 20
    assert said_after(Judge(), most) == ["gpu_thermal_slowdown"]


def test_two_readings_with_a_gap_between_them_show_nothing_that_lasts() -> None:
    judge = Judge()
    assert said_after(judge, [gpu(reasons=HOT)], 0.0) == []
    assert said_after(judge, [gpu(reasons=HOT)], 3600.0) == []


def test_a_fabric_may_take_five_minutes_to_start_and_a_failed_join_a_minute() -> None:
    starting, failed = gpu(fabric_state=2), gpu(fabric_state=3, fabric_status=999)
    assert said_after(Judge(), [starting] * 20) == []
    assert said_after(Judge(), [starting] * 22) == ["gpu_fabric_state"]
    assert said_after(Judge(), [failed] * 3) == []
    assert said_after(Judge(), [failed] * 6) == ["gpu_fabric_state"]
    judge = Judge()
    assert said_after(judge, [failed] * 6) == ["gpu_fabric_state"]
    assert said_after(judge, [gpu(fabric_state=3)], 6 * STEP) == []


def test_a_degraded_fabric_is_read_from_its_health_mask() -> None:
    found = Judge(at_once=True).evidence(gpu(fabric_state=3, fabric_health=0b01_10_01), 0.0)
    assert [(item.code, item.line.rpartition(": ")[2]) for item in found] == [
        ("gpu_fabric_state", "bandwidth degraded, route unhealthy")
    ]
    assert Judge(at_once=True).evidence(gpu(fabric_state=3, fabric_health=0b10_10_10), 0.0) == []


def test_what_a_gpu_does_not_know_is_no_fault() -> None:
    assert Judge(at_once=True).evidence(gpu(), 0.0) == []
    assert Judge(at_once=True).evidence(gpu(fabric_state=0, width=0, max_width=16), 0.0) == []


def test_a_recovery_action_that_nobody_knows_is_still_one() -> None:
    (found,) = Judge().evidence(gpu(recovery=42), 0.0)
    assert (found.code, found.line.rpartition(": ")[2]) == ("gpu_recovery", "recovery_action=unknown-42")
    assert GpuAnswer(index=0, reset_required=True).recovery_action == "reset"


def test_a_lost_gpu_without_an_address_stands_for_one_that_is_not_listed() -> None:
    bus = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    well, nameless = GpuAnswer(index=0, pci=bus[0], uuid="GPU-1"), GpuAnswer(index=1, lost=True)
    assert Reading(gpus=[well, nameless], present=bus[:2]).missing == []
    assert Reading(gpus=[well, nameless], present=bus).missing == [bus[1]]
    assert Reading(gpus=[well], present=bus[:2], excluded=[bus[1]]).missing == []
