"""What an agent writes is what the next one reads: cases, history and position, in one request."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.adapters.kube.own_node import OwnNode
from everstep.adapters.kube.verbs import Verbs
from everstep.core.correlation.sighting import Job
from everstep.core.diagnosis import Diagnosis, Told, resumed, with_lines, with_reading
from everstep.core.health import Evidence, Gpu
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.occurrences import Occurrence

CATALOG = shipped_catalog()
GPUS = (Gpu(0, "GPU-a", "s0", "0000:01:00"), Gpu(1, "GPU-b", "s1", "0000:02:00", lost=True))
EXAMPLES = [row.example for row in CATALOG.entries.values() if row.example and parse_line(row.example, companions=True)]


class OneObject:
    """An API server that keeps one object, as server-side apply by its only writer would."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self.requests = 0
        self.inherited: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PATCH":
            self.requests += 1
            self.body = msgspec.json.decode(request.content)
            self.body["status"]["inherited"] = self.inherited
        return httpx2.Response(200 if self.body else 404, content=msgspec.json.encode(self.body))


def written_and_read(diagnosis: Diagnosis) -> Diagnosis:
    server = OneObject()

    async def scenario() -> Diagnosis:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="http://api") as http:
            own = OwnNode(Verbs(http), "gpu-1", "leases")
            assert await own.stored() is None
            await own.publish(diagnosis, 1.0)
            said = await own.stored()
            assert said is not None
            return said.diagnosis

    found = asyncio.run(scenario())
    assert server.requests == 1
    return found


@given(st.lists(st.tuples(st.sampled_from(EXAMPLES), st.integers(0, 4_000_000_000)), max_size=20))
def test_any_book_survives_a_restart(steps: list[tuple[str, int]]) -> None:
    found, now = Diagnosis("boot-1", gpus=GPUS, lost_records=3, skipped_records=1), 1_700_000_000.0
    for sequence, (line, gap) in enumerate(steps):
        now = round(now + gap / 1e6, 6)
        evidence = parse_line(line, companions=True, allow_injected=True)
        assert evidence is not None
        told = Told(evidence, now, (Job("7", "uid 1000"),))
        found = with_lines(found, sequence, [told], CATALOG, now)
    assert written_and_read(found) == found


def test_states_survive_a_restart_too() -> None:
    remap = Evidence("host", "gpu_remap_failed", pci="0000:02:00.0", line="remapping failed")
    found = Diagnosis("boot-1", gpus=GPUS)
    for _ in range(2):
        found = with_reading(found, "NVML", [remap], CATALOG, 1_700_000_000.25)
    again = resumed(written_and_read(found), "boot-1")
    assert again.book == found.book
    assert with_reading(again, "NVML", [], CATALOG, 1_700_000_001.0).faults == ()


def test_what_the_controller_adds_comes_back_with_the_next_write() -> None:
    server = OneObject()
    server.inherited = [{"device": "s0", "code": "xid:79", "at": "2026-11-20T10:00:00.5Z", "bootID": "b"}]

    async def scenario() -> list[Occurrence]:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(server), base_url="http://api") as http:
            own = OwnNode(Verbs(http), "gpu-1", "leases")
            answered = await own.publish(Diagnosis("boot-1", gpus=GPUS), 1.0)
            said = await own.stored()
            assert said is not None
            assert said.inherited == tuple(answered)
            return list(answered)

    assert asyncio.run(scenario()) == [Occurrence("s0", "xid:79", 1795168800.5, "b")]
