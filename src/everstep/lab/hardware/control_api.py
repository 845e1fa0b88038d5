"""The hardware's own interface, on a Unix socket in the lab's directory that only the lab's owner may open.

``GET /v1/status``, ``GET /v1/gpus?since=UNIX_SECONDS``, ``POST /v1/nodes/{node}/boot``, and
``POST /v1/nodes/{node}/faults`` with ``{"xid", "gpu"}``, ``{"state", "gpu"}`` or ``{"power": true}``. Errors as in the
machine API.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from everstep.core.errors import EverstepError, InvalidInput
from everstep.lab.hardware.answers import answer, problem, problem_of
from everstep.lab.hardware.gpu_states import gpu_state
from everstep.lab.hardware.gpus import GpuReading
from everstep.lab.hardware.history import History, Sample
from everstep.lab.hardware.machines import Machines
from everstep.lab.hardware.settings import Power

Handler = Callable[[Request], Awaitable[Response]]


class FaultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to break: an XID on a GPU, a state that only its driver tells, or the machine's power."""

    xid: int | None = None
    state: str | None = None
    gpu: int = 0
    power: bool = False


class FaultAnswer(msgspec.Struct, frozen=True):
    """When it happened (Unix seconds), and the kernel log records it caused; only an XID causes any."""

    at: float
    records: list[str]


class MachineStatus(msgspec.Struct, frozen=True):
    """One machine with its GPUs."""

    name: str
    state: str
    boot_id: str
    pool: str | None
    gpus: list[GpuReading]


class GpuHistory(msgspec.Struct, frozen=True):
    """Samples later than asked for; ``now`` is the hardware's clock, Unix seconds."""

    now: float
    samples: list[Sample]


class BootAnswer(msgspec.Struct, frozen=True):
    """The id of the boot that may now start."""

    boot_id: str


class _Control:
    """The handlers; errors that they raise on purpose become answers in :func:`_careful`."""

    def __init__(self, machines: Machines, history: History, power: Power, keep: Callable[[], None]) -> None:
        self._machines = machines
        self._history = history
        self._power = power
        self._keep = keep

    async def status(self, _: Request) -> Response:
        for machine in self._machines:
            machine.observe()  # what was true at the last sample may be a second old
        return answer(
            200,
            [
                MachineStatus(m.name, str(m.record.state), m.boot_id, m.record.pool, m.readings())
                for m in self._machines
            ],
        )

    async def gpus(self, request: Request) -> Response:
        raw = request.query_params.get("since", "0")
        try:
            since = float(raw)
        except ValueError:
            raise InvalidInput(f"since={raw!r} is not a number of Unix seconds") from None
        return answer(200, GpuHistory(time.time(), self._history.since(since)))

    async def fault(self, request: Request) -> Response:
        machine = self._machines.get(request.path_params["node"])
        try:
            asked = msgspec.json.decode(await request.body(), type=FaultRequest)
        except msgspec.DecodeError as error:
            raise InvalidInput(f"the body names no fault: {error}") from None
        if [asked.power, asked.xid is not None, asked.state is not None].count(True) != 1:
            raise InvalidInput("name one fault: an XID, a state or the power")
        at = time.time()
        records: list[str] = []
        if asked.xid is not None:
            records = machine.inject(asked.xid, asked.gpu)
        elif asked.state is not None:
            machine.set_state(gpu_state(asked.state), asked.gpu)
        else:
            try:
                await self._power.power_off(machine.name)
            except Exception as error:  # whatever switching raises: the one who asked must hear of it
                return problem(500, "internal", f"the power of {machine.name} cannot be cut: {error}")
            machine.observe()
        self._keep()
        return answer(200, FaultAnswer(at, records))

    async def boot(self, request: Request) -> Response:
        boot_id = self._machines.get(request.path_params["node"]).start_boot()
        self._keep()
        return answer(200, BootAnswer(boot_id))


def _careful(handler: Handler) -> Handler:
    async def run(request: Request) -> Response:
        try:
            return await handler(request)
        except EverstepError as error:
            return problem_of(error)

    return run


def control_api(machines: Machines, history: History, power: Power, keep: Callable[[], None]) -> Starlette:
    """The application. ``keep`` stores the machines' records."""
    control = _Control(machines, history, power, keep)
    return Starlette(
        routes=[
            Route("/v1/status", _careful(control.status), methods=["GET"]),
            Route("/v1/gpus", _careful(control.gpus), methods=["GET"]),
            Route("/v1/nodes/{node}/faults", _careful(control.fault), methods=["POST"]),
            Route("/v1/nodes/{node}/boot", _careful(control.boot), methods=["POST"]),
        ]
    )
