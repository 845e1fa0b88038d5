"""DCGM's exporter: its text, what its gauge of XIDs is worth, and servers that do not answer as they should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.adapters.node import dcgm
from everstep.adapters.node.dcgm import DcgmExporter, own_gpus
from everstep.core.errors import Unreachable
from everstep.core.faults import judge
from everstep.core.health import Evidence, Fault, FaultClass, FirstAction, Severity
from everstep.core.node_state.dcgm_metrics import XID, by_gpu, parse_sample
from everstep.ports import PartlyUnreachable

from .tree import Tree

CATALOG = shipped_catalog()


def line(name: str, value: object, gpu: int = 0, more: str = "") -> str:
    labels = f'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",modelName="NVIDIA'
    return f'{name}{{{labels} H100 \\"80\\" {{GB}}, x",Hostname="n"{more}}} {value}\n'


def gpus(text: str) -> dict[str, dict[str, int]]:
    samples = [sample for part in text.encode().split(b"\n") if (sample := parse_sample(part))]
    return {key: gpu.values for key, gpu in by_gpu(samples).items()}


def test_a_sample_with_its_labels() -> None:
    sample = parse_sample(line(XID, 79, gpu=3).encode().strip())
    assert sample is not None
    assert (sample.name, sample.value) == (XID, 79)
    assert sample.labels == {"gpu": "3", "UUID": "GPU-3", "pci_bus_id": "00000000:03:00.0"}


@pytest.mark.parametrize(
    "text",
    [
        "# HELP DCGM_FI_DEV_XID_ERRORS x",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 40',
        "DCGM_FI_DEV_XID_ERRORS",
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"}',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} NaN',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} -1',
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 2147483632',  # DCGM_INT32_BLANK
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 9223372036854775794',  # not supported
        'DCGM_FI_DEV_XID_ERRORS{gpu="0"} +Inf',
    ],
)
def test_what_is_no_value(text: str) -> None:
    assert parse_sample(text.encode()) is None


def test_instances_of_one_gpu_count_together() -> None:
    text = line("DCGM_FI_DEV_ROW_REMAP_FAILURE", 0, more=',GPU_I_ID="1"') + line(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, more=',GPU_I_ID="2"'
    )
    assert gpus(text) == {"GPU-0": {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1}}


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_sample_or_none(data: bytes, named: bool) -> None:
    sample = parse_sample(b"DCGM_FI_DEV_XID_ERRORS" + data if named else data)
    by_gpu([sample] if sample else [])


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Exporter:
    """An HTTP server that answers with ``text``, or as its handler wants."""

    def __init__(self, text: str = "", handler: Handler | None = None) -> None:
        self.text = text
        self._handler = handler or self._answer

    async def __aenter__(self) -> Exporter:
        self._server = await asyncio.start_server(self._handler, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/metrics"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = self.text.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


def shown(evidence: Evidence) -> tuple[str, str, str | None]:
    row = judge(CATALOG, evidence)
    assert row is not None, evidence
    return evidence.kind, evidence.code, evidence.pci


async def readings(*texts: str, known: tuple[Fault, ...] = ()) -> list[list[tuple[str, str, str | None]]]:
    now = [0.0]
    async with Exporter() as exporter:
        source = DcgmExporter(exporter.url, known, own=lambda: {"GPU-0"}, clock=lambda: now[0])
        found = []
        for text in texts:
            exporter.text = text
            found.append([shown(item) for item in await source.read()])
            now[0] += 300
        return found


PCI = "00000000:00:00.0"


def test_an_xid_counts_when_it_comes_up_and_stays_until_the_machine_restarts() -> None:
    first, came, gone, again = asyncio.run(readings(line(XID, 0), line(XID, 79), line(XID, 0), line(XID, 79)))
    assert first == []
    assert came == gone == again == [("xid", "79", PCI)]


def test_an_xid_that_stood_there_before_is_of_unknown_age_and_accuses_nobody() -> None:
    first, same, other = asyncio.run(readings(line(XID, 79), line(XID, 79), line(XID, 31)))
    assert first == same == [("host", "dcgm_xid", PCI)]
    row = CATALOG.find("host", "dcgm_xid")
    assert row is not None
    assert row.fault_class is FaultClass.SUSPECT
    assert other == [("xid", "31", PCI), ("host", "dcgm_xid", PCI)]


def test_an_agent_that_starts_again_knows_its_xid_again() -> None:
    record = Fault(
        "xid:79@S", "xid", "79", FaultClass.HARDWARE, Severity.CRITICAL, FirstAction.REBOOT_NODE, "", pci="0:00:00"
    )
    assert asyncio.run(readings(line(XID, 79), known=(record,))) == [[("xid", "79", PCI)]]


def test_the_exporters_own_count_names_xids_that_are_new() -> None:
    text = line("DCGM_EXP_XID_ERRORS_COUNT", 2, more=',window_size_in_ms="300000",xid="94"') + line(XID, 94)
    assert asyncio.run(readings(text)) == [[("xid", "94", PCI)]]


def test_flags_counts_and_slowdowns() -> None:
    calm = line("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 5) + line("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x40)
    text = (
        line("DCGM_FI_DEV_ROW_REMAP_PENDING", 1)
        + line("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1)
        + line("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 3)
        + line("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 7)
        + line("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0xC1)
    )
    first, second, third = asyncio.run(readings(calm, text, text))
    assert first == []
    flags = ["gpu_remap_pending", "gpu_remap_failed", "gpu_ecc_uncorrected", "nvlink_recovery"]
    assert [code for _, code, _ in second] == flags
    assert [code for _, code, _ in third] == [*flags, "gpu_thermal_slowdown"]


def test_a_gpu_that_is_no_longer_named_is_not_well() -> None:
    async def scenario() -> None:
        async with Exporter(line(XID, 0) + line(XID, 0, gpu=1)) as exporter:
            source = DcgmExporter(exporter.url, own=lambda: {"GPU-0", "GPU-1"})
            await source.read()
            exporter.text = line(XID, 79)
            with pytest.raises(PartlyUnreachable, match="GPU-1") as caught:
                await source.read()
            assert [item.code for item in caught.value.evidence] == ["79"]

    asyncio.run(scenario())


def test_the_exporter_of_another_node_says_nothing_of_this_one(tmp_path: Path) -> None:
    """Their GPUs have the same addresses, and a service may send a question to any of them."""
    Tree(tmp_path).put("proc/driver/nvidia/gpus/0000:00:00.0/information", "Model: H100\nGPU UUID: \t GPU-ab-0\nBus:")
    assert own_gpus(tmp_path) == {"GPU-ab-0"}
    assert own_gpus(tmp_path / "nothing") == frozenset()

    async def scenario() -> None:
        async with Exporter(line(XID, 79)) as exporter:
            for own in (lambda: own_gpus(tmp_path), frozenset[str]):
                with pytest.raises(Unreachable, match="shows GPU-0, none of which this machine's driver lists"):
                    await DcgmExporter(exporter.url, own=own).read()

    asyncio.run(scenario())


async def unreachable(handler: Handler, deadline: float = 5.0) -> str:
    async with Exporter(handler=handler) as exporter:
        with pytest.raises(Unreachable) as caught:
            await DcgmExporter(exporter.url, deadline=deadline).read()
    return str(caught.value)


def sends(answer: bytes, *, then_waits: bool = False) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if then_waits:
            await reader.read()  # until the other side gives up
        writer.close()

    return handler


HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "waits", "complaint"),
    [
        (b"", True, "no whole answer within"),
        (HEAD + line(XID, 0).encode(), True, "no whole answer within"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", False, "answers 503"),
        (HEAD + b"<html>not metrics</html>", False, "names no GPU"),
        (HEAD, False, "names no GPU"),
        (HEAD + line(XID, 0).encode() + b'DCGM_FI_DEV_XID_ERRORS{gpu="1"', False, "broke off"),
        (b"\x00\x01 no HTTP at all\r\n\r\n", False, "cannot read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nDCGM", False, "cannot read"),
    ],
)
def test_what_is_no_answer_is_unreachable(answer: bytes, waits: bool, complaint: str) -> None:
    assert complaint in asyncio.run(unreachable(sends(answer, then_waits=waits), 0.3 if waits else 5.0))


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "_BODY_LIMIT", 1 << 20)

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        try:
            while True:
                writer.write(b"DCGM_" + b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    assert "more than 1 MiB" in asyncio.run(unreachable(floods))


def test_nobody_listens() -> None:
    async def scenario() -> None:
        async with Exporter() as exporter:
            url = exporter.url
        with pytest.raises(Unreachable, match="cannot read"):
            await DcgmExporter(url).read()

    asyncio.run(scenario())
