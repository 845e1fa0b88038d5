"""What the child that asks NVML makes of rare answers, and when it opens NVML anew; the calls are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from everstep.adapters.gpu import nvml_child
from everstep.adapters.gpu.nvml_child import Session

UNSUPPORTED = (
    "nvmlDeviceGetSerial", "nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceValidateInforom",
    "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth", "nvmlGetExcludedDeviceCount",
)  # fmt: skip


def raises(code: int) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise pynvml.NVMLError(code)

    return call


@dataclass
class Node:
    """A node with two GPUs on the bus, of which NVML lists the first ones."""

    devices: Path
    patch: pytest.MonkeyPatch
    listed: int = 2
    opened: int = 0
    seconds: float = 1000.0
    answers: dict[str, Any] = field(default_factory=dict)

    def session(self) -> Session:
        for number in (1, 2):
            device = self.devices / f"0000:0{number}:00.0"
            device.mkdir()
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")
        say = self.say
        say("nvmlInit", self._open)
        say("nvmlShutdown", lambda: None)
        say("nvmlDeviceGetCount", lambda: self.listed)
        say("nvmlDeviceGetHandleByIndex", lambda index: index)
        say("nvmlDeviceGetPciInfo", lambda handle: SimpleNamespace(busId=f"00000000:0{handle + 1}:00.0"))
        say("nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
        say("nvmlDeviceGetName", lambda _: "NVIDIA H100")
        for name in UNSUPPORTED:
            say(name, raises(pynvml.NVML_ERROR_NOT_SUPPORTED))
        self.patch.setattr(nvml_child.time, "monotonic", lambda: self.seconds)
        return Session(pynvml, str(self.devices), 3600.0)

    def say(self, name: str, answer: Callable[..., Any]) -> None:
        self.patch.setattr(pynvml, name, answer)

    def _open(self) -> None:
        self.opened += 1


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    return Node(tmp_path, monkeypatch)


def test_a_gpu_that_knows_nothing_is_well(node: Node) -> None:
    answer = node.session().answer()
    assert [gpu["unknown"] for gpu in answer["gpus"]] == [{}, {}]
    assert node.opened == 1


def test_what_looks_broken_is_looked_at_again_through_a_new_nvml_but_not_at_every_question(node: Node) -> None:
    session = node.session()
    assert len(session.answer()["gpus"]) == 2
    node.listed = 1
    node.seconds += 30
    session.answer()
    assert node.opened == 1  # opened half a minute ago
    node.seconds += 31
    session.answer()
    session.answer()
    assert node.opened == 2
    node.listed = 2
    node.seconds += 600
    session.answer()
    assert node.opened == 2  # nothing looks broken any more


def test_an_nvml_that_was_closed_under_us_is_opened_at_the_next_question(node: Node) -> None:
    session = node.session()
    session.answer()
    node.say("nvmlDeviceGetRemappedRows", raises(pynvml.NVML_ERROR_UNINITIALIZED))
    assert session.answer()["error"] == pynvml.NVML_ERROR_UNINITIALIZED
    node.say("nvmlDeviceGetRemappedRows", lambda _: (0, 0, 0, 1))
    assert [gpu["remap_failed"] for gpu in session.answer()["gpus"]] == [True, True]
    assert node.opened == 2


def test_the_one_question_for_privileged_processes_may_be_refused_and_no_other(node: Node) -> None:
    session = node.session()
    denied = raises(pynvml.NVML_ERROR_NO_PERMISSION)
    node.say("nvmlDeviceGetSramEccErrorStatus", denied)
    assert session.answer()["gpus"][0]["unknown"] == {}
    node.say("nvmlDeviceGetRemappedRows", denied)
    assert session.answer()["gpus"][0]["unknown"] == {"remapped rows": "Insufficient Permissions"}


def test_drivers_before_535_have_another_name_for_the_clocks_reasons(node: Node) -> None:
    session = node.session()
    node.say("nvmlDeviceGetCurrentClocksEventReasons", raises(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    node.say("nvmlDeviceGetCurrentClocksThrottleReasons", lambda _: 0x40)
    assert session.answer()["gpus"][0]["reasons"] == 0x40


def test_a_gpu_that_wants_a_reset_says_so_in_its_errors_too(node: Node) -> None:
    session = node.session()
    node.say("nvmlDeviceGetRemappedRows", raises(pynvml.NVML_ERROR_RESET_REQUIRED))
    gpu = session.answer()["gpus"][0]
    assert (gpu["reset_required"], gpu["unknown"]) == (True, {})


def test_the_inforom_is_read_from_flash_once_an_hour(node: Node) -> None:
    session = node.session()
    node.say("nvmlDeviceValidateInforom", raises(pynvml.NVML_ERROR_CORRUPTED_INFOROM))
    assert session.answer()["gpus"][1]["inforom"] is True
    node.say("nvmlDeviceValidateInforom", lambda _: None)
    node.seconds += 3599
    assert session.answer()["gpus"][1]["inforom"] is True
    node.seconds += 1
    assert not session.answer()["gpus"][1]["inforom"]
