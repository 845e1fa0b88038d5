"""NVIDIA's own binding, in the agent's child process, against the lab's driver library: every state it can show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.adapters.gpu.nvml import Nvml, NvmlSettings
from everstep.core.errors import Unreachable
from everstep.core.fault_catalog import Seen
from everstep.core.faults import judge
from everstep.core.health import Evidence, FirstAction
from everstep.lab.hardware.driver_state import PCI_FOLDER, STATE_FILE, driver_text
from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import SimulatedGpu, new_identity
from everstep.ports import PartlyUnreachable
from tests.contract.nvml.conftest import Driver


def codes(evidence: Sequence[Evidence]) -> list[str]:
    return [f"{item.kind}:{item.code}" for item in evidence]


def test_well_gpus_are_listed_and_nothing_is_wrong(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml(at_once=False) as nvml:
            assert list(await nvml.read()) == []
            gpus = await nvml.gpus()
            assert [(gpu.index, gpu.lost, gpu.recovery_action) for gpu in gpus] == [
                (0, False, "none"),
                (1, False, "none"),
            ]
            for gpu, simulated in zip(gpus, driver.gpus, strict=True):
                who = simulated.identity
                assert (gpu.uuid, gpu.serial, gpu.pci, gpu.model) == (who.uuid, who.serial, who.pci, who.model)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("state", "code", "action"),
    [
        (GpuState.LOST, "host:gpu_lost", FirstAction.REBOOT_NODE),
        (GpuState.WANTS_RESET, "host:gpu_recovery", FirstAction.RESET_GPU),
        (GpuState.WANTS_REBOOT, "host:gpu_recovery", FirstAction.REBOOT_NODE),
        (GpuState.UNLISTED, "host:gpu_missing", FirstAction.REBOOT_NODE),
        (GpuState.REMAP_PENDING, "host:gpu_remap_pending", FirstAction.RESET_GPU),
        (GpuState.REMAP_FAILED, "host:gpu_remap_failed", FirstAction.REPLACE_NODE),
        (GpuState.SRAM_ERRORS, "host:gpu_sram_threshold", FirstAction.REPLACE_NODE),
        (GpuState.TOO_HOT, "host:gpu_thermal_slowdown", FirstAction.CALL_HUMAN),
        (GpuState.POWER_BRAKE, "host:gpu_power_brake", FirstAction.CALL_HUMAN),
        (GpuState.NO_FABRIC, "host:gpu_fabric_state", FirstAction.CALL_HUMAN),
        (GpuState.INFOROM_DAMAGED, "host:gpu_inforom", FirstAction.REPLACE_NODE),
        (GpuState.NARROW_LINK, "pcie:link_degraded", FirstAction.CALL_HUMAN),
    ],
)
def test_a_state_is_evidence_while_it_lasts_and_names_its_gpu(
    driver: Driver, state: GpuState, code: str, action: FirstAction
) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            await nvml.read()
            driver.take(state, index=1)
            (found,) = await nvml.read()
            assert codes([found]) == [code]
            assert found.pci == driver.gpus[1].identity.pci
            entry = judge(shipped_catalog(), found)
            assert entry is not None
            assert (entry.seen, entry.action) == (Seen.STATE, action)
            driver.take(GpuState.WELL, index=1)
            assert list(await nvml.read()) == []

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("state", "lost", "action"),
    [
        (GpuState.LOST, True, "none"),
        (GpuState.WANTS_RESET, False, "reset"),
        (GpuState.WANTS_REBOOT, False, "reboot"),
    ],
)
def test_the_inventory_shows_what_is_lost_and_what_the_driver_wants(
    driver: Driver, state: GpuState, lost: bool, action: str
) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            well = await nvml.gpus()
            driver.take(state)
            ill, other = await nvml.gpus()
            assert (ill.lost, ill.serial, ill.pci) == (lost, well[0].serial, well[0].pci)
            assert lost or ill.recovery_action == action
            assert other == well[1]

    asyncio.run(ask())


def test_a_gpu_that_was_lost_before_anybody_looked_is_evidence_and_no_made_up_gpu(driver: Driver) -> None:
    driver.take(GpuState.LOST)

    async def ask() -> None:
        async with driver.nvml() as nvml:
            assert [gpu.index for gpu in await nvml.gpus()] == [1]
            (found,) = await nvml.read()
            assert (codes([found]), found.subject) == (["host:gpu_lost"], "GPU0")

    asyncio.run(ask())


def test_a_board_without_a_serial_number_goes_by_its_uuid(driver: Driver) -> None:
    who = new_identity(0)
    driver.gpus[0] = SimulatedGpu(type(who)(0, who.uuid, "", who.pci, "NVIDIA GeForce RTX 4090"))
    driver.write()

    async def ask() -> None:
        async with driver.nvml() as nvml:
            gpu = (await nvml.gpus())[0]
            assert (gpu.serial, gpu.model) == (who.uuid, "NVIDIA GeForce RTX 4090")
            assert list(await nvml.read()) == []

    asyncio.run(ask())


def test_another_gpu_in_its_place_has_another_serial_number(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            driver.take(GpuState.REMAP_FAILED)
            assert codes(await nvml.read()) == ["host:gpu_remap_failed"]
            driver.gpus[0] = SimulatedGpu(new_identity(0))
            driver.write()
            assert list(await nvml.read()) == []
            assert (await nvml.gpus())[0].serial == driver.gpus[0].identity.serial

    asyncio.run(ask())


def test_an_error_that_says_nothing_is_neither_well_nor_does_it_hide_others(driver: Driver) -> None:
    driver.take(GpuState.BROKEN_QUERY)
    driver.take(GpuState.REMAP_FAILED, index=1)

    async def ask() -> None:
        async with driver.nvml() as nvml:
            with pytest.raises(PartlyUnreachable, match="GPU 0: remapped rows: Unknown Error") as partly:
                await nvml.read()
            assert codes(partly.value.evidence) == ["host:gpu_remap_failed"]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("driver loaded=0 hangs=0\n", "the NVIDIA driver is not loaded"),
        ("something else\n", "Unknown Error"),
        ("driver loaded=1 hangs=0\ngpu uuid=GPU-1 serial=1\n", "Unknown Error"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_no_node_without_gpus(driver: Driver, text: str, said: str) -> None:
    (driver.run / STATE_FILE).write_text(text)

    async def ask() -> None:
        async with driver.nvml() as nvml:
            with pytest.raises(Unreachable, match=said):
                await nvml.gpus()
            with pytest.raises(Unreachable, match=said):
                await nvml.read()
            driver.write()
            assert len(await nvml.gpus()) == 2  # the driver was loaded: nothing has to be started again
            assert nvml.restarts == 0

    asyncio.run(ask())


def test_a_library_that_cannot_be_loaded_says_how_to_mend_it(driver: Driver) -> None:
    (driver.run / "driver" / "libnvidia-ml.so.1").write_bytes(b"")  # what a half installed driver left on real nodes

    async def ask() -> None:
        async with driver.nvml() as nvml:
            with pytest.raises(Unreachable, match=r"libnvidia-ml.so.1 cannot be loaded: .*EVERSTEP_NVML_LIBRARY"):
                await nvml.read()

    asyncio.run(ask())


def test_without_the_binding_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Unreachable, match=r"everstep\[agent\]"):
        Nvml(NvmlSettings())


def test_gpus_that_another_driver_took_or_a_container_may_not_see_are_not_missing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.gpus[1].take(GpuState.UNLISTED)
    driver.write()
    pci = driver.run / PCI_FOLDER

    async def found() -> list[str]:
        async with driver.nvml() as nvml:
            return codes(await nvml.read())

    assert asyncio.run(found()) == ["host:gpu_missing"]
    with monkeypatch.context() as patch:
        patch.setenv("NVIDIA_VISIBLE_DEVICES", driver.gpus[0].identity.uuid)
        assert asyncio.run(found()) == []
    (pci / "vfio-pci").mkdir()
    (pci / f"{driver.gpus[1].identity.pci}.0" / "driver").symlink_to(pci / "vfio-pci")
    assert asyncio.run(found()) == []


def test_the_file_of_the_driver_is_whole_in_every_state(tmp_path: Path) -> None:
    for state in GpuState:
        gpu = SimulatedGpu(new_identity(0))
        gpu.take(state)
        lines = driver_text([gpu]).splitlines()
        assert len(lines) == (1 if state is GpuState.UNLISTED else 2)
