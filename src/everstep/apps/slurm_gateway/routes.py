"""The HTTP interface of ``everstep.api.gateway``: check the caller, check the words, call one operation, log it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from everstep.adapters.slurm.operations import SlurmOperations
from everstep.adapters.slurm.records import RecordFolder
from everstep.adapters.slurm.shared import Shared
from everstep.api import gateway as api
from everstep.apps.slurm_gateway.callers import Callers
from everstep.core import slurm_names
from everstep.core.errors import EverstepError, InvalidInput, Refused, Unreachable

log = structlog.get_logger()
_Body = TypeVar("_Body")
_Handler = Callable[[Request], Awaitable[Response]]
# A file server that hangs must not use up the threads.
_RECORD_READERS = 4
_RECORD_SECONDS = 6.0
_MAX_RESTARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the routes need.

    Attributes:
        snapshot: encoded snapshots, shared among callers.
    """

    callers: Callers
    operations: SlurmOperations
    snapshot: Shared[bytes]
    records: RecordFolder
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_RECORD_READERS))


def application(gateway: Gateway) -> Starlette:
    """The ASGI application; it serves nothing but version 1 of the interface."""
    routes = [
        Route("/healthz", _healthy, methods=["GET"]),
        _route(gateway, "/v1/snapshot", "GET", _snapshot),
        _route(gateway, "/v1/jobs/{job}/progress", "GET", _progress),
        _route(gateway, "/v1/nodes/{node}", "DELETE", _forget),
        _route(gateway, "/v1/nodes/{node}/{operation}", "POST", _on_node),
        _route(gateway, "/v1/jobs/{job}/tell", "POST", _tell),
        _route(gateway, "/v1/jobs/{job}/{operation}", "POST", _on_job),
    ]
    return Starlette(routes=routes, exception_handlers={404: _no_such_path, 405: _no_such_path})


def _route(
    gateway: Gateway, path: str, method: str, handle: Callable[[Gateway, Request], Awaitable[Response]]
) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            user = await gateway.callers.admit(request.headers.get("authorization", ""))
        except EverstepError as error:
            log.warning("caller turned away", path=request.url.path, error=str(error))
            return _failure(error, unauthenticated=isinstance(error, Refused))
        try:
            answer = await handle(gateway, request)
        except EverstepError as error:
            log.warning("failed", method=method, path=request.url.path, caller=user, error=str(error))
            return _failure(error)
        if method != "GET":
            log.info("done", method=method, path=request.url.path, caller=user)
        return answer

    return Route(path, endpoint, methods=[method])


async def _healthy(_: Request) -> Response:
    """Says that this process answers; whether Slurm does is for the snapshot to say."""
    return PlainTextResponse("ok\n")


async def _no_such_path(request: Request, _: Exception) -> Response:
    return _failure(InvalidInput(f"there is no {request.method} {request.url.path[:200]} here"))


async def _snapshot(gateway: Gateway, _: Request) -> Response:
    return Response(await gateway.snapshot.get(), media_type="application/json")


async def _progress(gateway: Gateway, request: Request) -> Response:
    job = slurm_names.job_id(request.path_params["job"])
    user = slurm_names.user_name(request.query_params.get("user", ""))
    try:
        async with asyncio.timeout(_RECORD_SECONDS):
            await gateway.readers.acquire()
            reading = asyncio.ensure_future(asyncio.to_thread(gateway.records.progress, job, user))
            # A thread that hangs keeps its place: the slots, not the thread pool, run out.
            reading.add_done_callback(lambda _: gateway.readers.release())
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait any more
            progress = await asyncio.shield(reading)
    except TimeoutError:
        raise Unreachable("the homes' file system does not answer") from None
    return Response(msgspec.json.encode(progress), media_type="application/json")


async def _forget(gateway: Gateway, request: Request) -> Response:
    return await _change(gateway, gateway.operations.forget(slurm_names.node_name(request.path_params["node"])))


async def _on_node(gateway: Gateway, request: Request) -> Response:
    node = slurm_names.node_name(request.path_params["node"])
    match request.path_params["operation"]:
        case "resume":
            prefix = (await _body(request, api.ReasonPrefix)).reason_prefix
            slurm_names.one_line(prefix, "reason prefix", slurm_names.MAX_REASON)
            return await _change(gateway, gateway.operations.resume(node, prefix))
        case "drain" | "down" as operation:
            reason = (await _body(request, api.Reason)).reason
            slurm_names.one_line(reason, "reason", slurm_names.MAX_REASON)
            act = gateway.operations.drain if operation == "drain" else gateway.operations.down
            return await _change(gateway, act(node, reason))
        case other:
            raise InvalidInput(f"there is no operation {other[:80]!r} on a node")


async def _on_job(gateway: Gateway, request: Request) -> Response:
    operations = {
        "requeue": gateway.operations.requeue,
        "hold": gateway.operations.hold,
        "release": gateway.operations.release,
        "clear-stale": gateway.operations.clear_stale_allocation,
    }
    job = slurm_names.job_id(request.path_params["job"])
    operation = operations.get(request.path_params["operation"])
    if operation is None:
        raise InvalidInput(f"there is no operation {request.path_params['operation'][:80]!r} on a job")
    restarts = (await _body(request, api.Guard)).restarts
    if not 0 <= restarts <= _MAX_RESTARTS:
        raise InvalidInput(f"restarts must be 0 or more, not {restarts}")
    return await _change(gateway, operation(job, restarts))


async def _tell(gateway: Gateway, request: Request) -> Response:
    job = slurm_names.job_id(request.path_params["job"])
    message = (await _body(request, api.Message)).message
    slurm_names.one_line(message, "message", slurm_names.MAX_MESSAGE)
    return await _change(gateway, gateway.operations.tell(job, message))


async def _change(gateway: Gateway, operation: Awaitable[None]) -> Response:
    """Runs to its end even when the caller hangs up; afterwards nobody is shown what was true before."""

    async def whole() -> None:
        try:
            await operation
        finally:
            gateway.snapshot.forget()

    await asyncio.shield(asyncio.ensure_future(whole()))
    return Response(status_code=204)


async def _body(request: Request, kind: type[_Body]) -> _Body:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > api.MAX_BODY:
            raise InvalidInput(f"the body is larger than {api.MAX_BODY} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body is not what this operation takes: {error}") from None


def _failure(error: EverstepError, unauthenticated: bool = False) -> Response:
    status, failure = api.failure_of(error)
    return Response(
        msgspec.json.encode(failure),
        status_code=401 if unauthenticated else status,
        media_type="application/json",
    )
