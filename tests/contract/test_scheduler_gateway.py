"""The Scheduler contract through client, HTTP and gateway, with the modelled Slurm at the far end; and the door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest

from everstep.adapters.slurm.client import GatewayScheduler
from everstep.adapters.slurm.operations import SlurmOperations
from everstep.adapters.slurm.records import RecordFolder
from everstep.adapters.slurm.shared import Shared
from everstep.api.gateway import AUDIENCE, MAX_BODY, Kind
from everstep.apps.slurm_gateway.callers import CACHE_SECONDS, Callers, ReviewServer
from everstep.apps.slurm_gateway.routes import Gateway, application
from everstep.core.errors import InvalidInput, NotFound, Refused, Unreachable
from everstep.testing.model_world import ModelWorld
from everstep.testing.scheduler import ModelCommands, ModelReads
from everstep.testing.scheduler_contract import SchedulerContract
from everstep.testing.slurm_world import SlurmWorld
from everstep.testing.token_reviews import TokenReviews

CONTROLLER = "system:serviceaccount:everstep-system:everstep-controller"
URL = "http://gateway"


class Door:
    """A gateway in this process, before a modelled Slurm.

    Attributes:
        token: what the client sends.
        moved: seconds by which the gateway's idea of time is moved on.
    """

    def __init__(self, reviews: TokenReviews, folder: Path) -> None:
        (folder / "own-token").write_text("own")
        self.world = ModelWorld("22.05.8")
        self.reviews = reviews
        self.token = "controller"
        self.moved = 0.0
        self.callers = Callers(
            ReviewServer(reviews.url, None, folder / "own-token"), frozenset({CONTROLLER}), now=lambda: self.moved
        )
        model = self.world.model
        operations = SlurmOperations(ModelCommands(model), ModelReads(model), model.now, self.world.pause)
        self.app = application(Gateway(self.callers, operations, Shared(self._take, max_age=0), RecordFolder(folder)))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[GatewayScheduler]:
        transport = httpx2.ASGITransport(app=self.app)
        async with GatewayScheduler(lambda: [(self.world.cluster, URL)], lambda: self.token, transport) as scheduler:
            yield scheduler
        await self.callers.close()

    async def _take(self) -> bytes:
        return msgspec.json.encode(self.world.model.snapshot())

    def ask(self, method: str, path: str, **more: object) -> httpx2.Response:
        async def whole() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app)
            async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
                headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
                answer = await client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]
            await self.callers.close()
            self.callers._http = None
            return answer

        return asyncio.run(whole())


@pytest.fixture
def reviews() -> Iterator[TokenReviews]:
    users = {
        "controller": (CONTROLLER, [AUDIENCE]),
        "elsewhere": (CONTROLLER, ["https://kubernetes.default.svc"]),
        "stranger": ("system:serviceaccount:default:default", [AUDIENCE]),
    }
    with TokenReviews(users) as server:
        yield server


@pytest.fixture
def door(reviews: TokenReviews, tmp_path: Path) -> Door:
    return Door(reviews, tmp_path)


class TestThroughTheGateway(SchedulerContract):
    door: Door

    @pytest.fixture(autouse=True)
    def _door(self, door: Door) -> None:
        self.door = door

    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[SlurmWorld]:
        async with self.door.open() as scheduler:
            self.door.world.scheduler = scheduler
            yield self.door.world


def kind(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["kind"])


@pytest.mark.parametrize("token", ["", "unknown", "elsewhere", "stranger", "x" * 20_000])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/snapshot"), ("POST", "/v1/nodes/n1/drain")])
def test_strangers_are_turned_away(door: Door, token: str, method: str, path: str) -> None:
    door.token = token
    answer = door.ask(method, path, json={"reason": "everstep: x"} if method == "POST" else None)
    assert (answer.status_code, kind(answer)) == (401, Kind.REFUSED)
    assert "DRAIN" not in door.world.model.node_view(door.world.model.nodes["n1"]).states


def test_health_needs_no_token(door: Door) -> None:
    door.token = ""
    assert door.ask("GET", "/healthz").status_code == 200


def test_a_caller_is_reviewed_once_in_a_while(door: Door) -> None:
    for _ in range(3):
        assert door.ask("GET", "/v1/snapshot").status_code == 200
    assert door.reviews.asked == 1
    door.moved = CACHE_SECONDS + 1
    door.reviews.users.clear()
    assert door.ask("GET", "/v1/snapshot").status_code == 401, "a revoked token works for half a minute at most"


def test_nobody_comes_in_while_callers_cannot_be_checked(door: Door) -> None:
    door.reviews.status = 500
    answer = door.ask("GET", "/v1/snapshot")
    assert (answer.status_code, kind(answer)) == (503, Kind.TRANSIENT)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/nodes/n[1-5]/drain", {"reason": "everstep: x"}),
        ("POST", "/v1/nodes/ALL/drain", {"reason": "everstep: x"}),
        ("POST", "/v1/nodes/n1/drain", {"reason": "two\nlines"}),
        ("POST", "/v1/nodes/n1/drain", {"reason": ""}),
        ("POST", "/v1/nodes/n1/drain", {"reason": "x" * 257}),
        ("POST", "/v1/nodes/n1/drain", {"reason": "everstep: x", "force": True}),
        ("POST", "/v1/nodes/n1/drain", {}),
        ("POST", "/v1/nodes/n1/drain", ["everstep: x"]),
        ("POST", "/v1/nodes/n1/reboot", {"reason": "everstep: x"}),
        ("POST", "/v1/nodes/n1/resume", {"reason_prefix": ""}),
        ("DELETE", "/v1/nodes/-a", None),
        ("POST", "/v1/jobs/1,2/requeue", {"restarts": 0}),
        ("POST", "/v1/jobs/1/requeue", {"restarts": -1}),
        ("POST", "/v1/jobs/1/requeue", {"restarts": "0"}),
        ("POST", "/v1/jobs/1/kill", {"restarts": 0}),
        ("POST", "/v1/jobs/1/tell", {"message": "x\x1b[2J"}),
        ("GET", "/v1/jobs/1/progress?user=../root", None),
        ("GET", "/v1/jobs/1/progress", None),
        ("GET", "/v1/everything", None),
        ("DELETE", "/v1/snapshot", None),
    ],
)
def test_what_is_malformed_never_reaches_slurm(door: Door, method: str, path: str, body: object) -> None:
    before = door.world.model.snapshot()
    answer = door.ask(method, path, json=body)
    assert (answer.status_code, kind(answer)) == (400, Kind.INVALID)
    assert door.world.model.snapshot() == before


def test_a_body_is_bounded(door: Door) -> None:
    answer = door.ask("POST", "/v1/nodes/n1/drain", content=b" " * (MAX_BODY + 1))
    assert (answer.status_code, kind(answer)) == (400, Kind.INVALID)


def test_a_slurm_that_is_away_is_transient(door: Door) -> None:
    door.world.model.reachable = False
    for answer in (door.ask("GET", "/v1/snapshot"), door.ask("POST", "/v1/jobs/1/hold", json={"restarts": 0})):
        assert (answer.status_code, kind(answer)) == (503, Kind.TRANSIENT)


def test_progress_comes_from_the_users_home(door: Door, tmp_path: Path) -> None:
    folder = tmp_path / "alice" / ".everstep" / "jobs" / "7"
    folder.mkdir(parents=True)
    (folder / "attempt-0000.jsonl").write_text(json.dumps({"event": "progress", "step": 4, "time": 9.5}) + "\n")

    async def whole() -> None:
        async with door.open() as scheduler:
            progress = await scheduler.progress(door.world.cluster, "7", "alice")
            assert [(a.attempt, a.highest_step, a.first_step_at) for a in progress.attempts] == [(0, 4, 9.5)]

    asyncio.run(whole())


def scripted(status: int, body: bytes) -> httpx2.MockTransport:
    return httpx2.MockTransport(lambda request: httpx2.Response(status, content=body))


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, b"<html>not found</html>", Unreachable),
        (404, b'{"kind": "Status", "code": 404}', Unreachable),
        (200, b"<html>welcome</html>", Unreachable),
        (502, b"", Unreachable),
        (302, b"", Unreachable),
        (404, b'{"error": {"kind": "not_found", "message": "Slurm does not know job 7"}}', NotFound),
        (401, b'{"error": {"kind": "refused", "message": "no"}}', Refused),
        (400, b'{"error": {"kind": "invalid", "message": "no"}}', InvalidInput),
    ],
)
def test_only_the_gateway_itself_can_say_that_something_is_not_there(
    status: int, body: bytes, error: type[Exception]
) -> None:
    async def whole() -> None:
        async with GatewayScheduler(lambda: [("slurm/main", URL)], lambda: "t", scripted(status, body)) as scheduler:
            with pytest.raises(error) as caught:
                await scheduler.progress("slurm/main", "7", "alice")
            assert type(caught.value) is error
            (silent,) = (await scheduler.snapshots()).silent
            assert (silent.cluster, silent.why) == ("slurm/main", str(caught.value))

    asyncio.run(whole())


def test_a_gateway_of_another_cluster_is_not_believed() -> None:
    async def whole() -> None:
        answer = scripted(200, b'{"cluster": "slurm/other", "version": "1", "taken_at": 1}')
        async with GatewayScheduler(lambda: [("slurm/main", URL)], lambda: "t", answer) as scheduler:
            look = await scheduler.snapshots()
            assert not look.answered
            assert "belongs to Slurm cluster slurm/other" in look.silent[0].why

    asyncio.run(whole())


def test_one_gateway_that_is_away_is_named_and_the_others_answer(door: Door) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "two":
            raise httpx2.ConnectError("connection refused")
        return httpx2.Response(200, content=msgspec.json.encode(door.world.model.snapshot()))

    async def whole() -> None:
        endpoints = [(door.world.cluster, "http://one"), ("slurm/two", "http://two")]
        pools = {"slurm/two": ({"everstep.io/pool": "two"},)}
        transport = httpx2.MockTransport(answer)
        async with GatewayScheduler(lambda: endpoints, lambda: "t", transport, pools.get) as scheduler:
            look = await scheduler.snapshots()
            assert [each.cluster for each in look.answered] == [door.world.cluster]
            (silent,) = look.silent
            assert "slurm/two does not answer: connection refused" in silent.why
            assert silent.may_hold("n1", {"everstep.io/pool": "two", "zone": "a"})
            assert not silent.may_hold("n1", {"everstep.io/pool": "one"})

    asyncio.run(whole())
