"""The machine API: what a bare-metal provider offers to whoever heals the nodes on its machines.

``GET /v1/machines``, ``PUT /v1/operations/{id}`` with ``{"machine", "action": "retire"}``, ``GET /v1/operations/{id}``.
Every answer is JSON; an error is ``{"code", "error"}``. ``unknownOperation`` is said only when the records were read
and hold no such id, so a caller can tell it from the 404 of anything in between.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from everstep.core.errors import EverstepError, NotFound
from everstep.lab.hardware.answers import answer, problem, problem_of
from everstep.lab.hardware.machines import Machines
from everstep.lab.hardware.records import OperationPhase, OperationRecord
from everstep.lab.hardware.retirements import Retirements

STATES = {OperationPhase.ACCEPTED: "accepted", OperationPhase.DONE: "done", OperationPhase.FAILED: "failed"}

Handler = Callable[[Request], Awaitable[Response]]


class MachineAnswer(msgspec.Struct, frozen=True):
    """One machine as a caller sees it; ``state`` is running, off or repairing."""

    name: str
    state: str
    boot_id: str


class OperationAnswer(msgspec.Struct, frozen=True):
    """One operation as a caller sees it; ``state`` is accepted, running, done (it is back) or failed."""

    id: str
    machine: str
    action: str
    state: str
    message: str


class OperationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT."""

    machine: str
    action: str


def operation_answer(record: OperationRecord) -> OperationAnswer:
    """The public view of a stored operation."""
    state = STATES.get(record.phase, "running")
    return OperationAnswer(record.id, record.machine, record.action, state, record.message)


class _Api:
    """The handlers; errors that they raise on purpose become answers in :func:`_guarded`."""

    def __init__(self, machines: Machines, retirements: Retirements) -> None:
        self._machines = machines
        self._retirements = retirements

    async def list_machines(self, _: Request) -> Response:
        for machine in self._machines:
            machine.observe()  # what was true at the last sample may be a second old
        return answer(200, [MachineAnswer(m.name, str(m.record.state), m.boot_id) for m in self._machines])

    async def put_operation(self, request: Request) -> Response:
        try:
            asked = msgspec.json.decode(await request.body(), type=OperationRequest)
        except msgspec.DecodeError as error:
            return problem(400, "invalid", f'the body must be {{"machine": ..., "action": "retire"}}: {error}')
        operation = self._retirements.put(request.path_params["id"], asked.machine, asked.action)
        status = 202 if operation.phase is OperationPhase.ACCEPTED else 200
        return answer(status, operation_answer(operation))

    async def get_operation(self, request: Request) -> Response:
        try:
            return answer(200, operation_answer(self._retirements.get(request.path_params["id"])))
        except NotFound as error:
            return problem(404, "unknownOperation", str(error))


def _guarded(handler: Handler, token: str) -> Handler:
    expected = f"Bearer {token}".encode()

    async def guard(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            return problem(401, "unauthorized", "a valid bearer token is needed")
        try:
            return await handler(request)
        except EverstepError as error:
            return problem_of(error)

    return guard


def machine_api(machines: Machines, retirements: Retirements, token: str) -> Starlette:
    """The application; ``token`` is the one bearer token that opens it."""
    api = _Api(machines, retirements)
    return Starlette(
        routes=[
            Route("/v1/machines", _guarded(api.list_machines, token), methods=["GET"]),
            Route("/v1/operations/{id}", _guarded(api.put_operation, token), methods=["PUT"]),
            Route("/v1/operations/{id}", _guarded(api.get_operation, token), methods=["GET"]),
        ]
    )
