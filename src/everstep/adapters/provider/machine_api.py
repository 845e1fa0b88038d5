"""A provider behind the machine API: a small HTTP interface that keeps operations under ids of the caller's choice.

``PUT /v1/operations/{id}`` ``{"machine", "action"}`` and ``GET /v1/operations/{id}``; errors are ``{"code", "error"}``.
docs/reference/machine_api.md is the whole of it, for whoever puts their own provider behind it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from everstep.core.errors import Conflict, EverstepError, InvalidInput, NotFound, Refused, Unreachable
from everstep.core.machine_state import Operation, OperationState

UNKNOWN_OPERATION = "unknownOperation"
RETIRE = "retire"

Answer = TypeVar("Answer")


class _OperationAnswer(msgspec.Struct, frozen=True):
    id: str
    machine: str
    action: str
    state: OperationState
    message: str = ""


class _Problem(msgspec.Struct, frozen=True):
    code: str
    error: str


class MachineApi:
    """Implements :class:`everstep.ports.Provider`; use it as an async context manager.

    Args:
        url: base address, for example ``http://198.18.0.1:7070``.
        token_file: bearer token; read at every call, because mounted secrets are renewed in place.
        seconds: limit for one call.
    """

    def __init__(self, url: str, token_file: Path, seconds: float = 5.0) -> None:
        self._url = url
        self._token_file = token_file
        # a proxy of the environment must not see, nor answer for, what says which machine is destroyed
        self._http = httpx2.AsyncClient(base_url=url, timeout=seconds, trust_env=False)

    async def __aenter__(self) -> MachineApi:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def operation(self, operation_id: str) -> Operation | None:
        """The operation as the provider knows it.

        None only for the provider's own word that it knows no such id: any other 404 comes from something that stands
        between us and it, and means that it could not be asked.
        """
        response = await self._call("GET", operation_id)
        if response.status_code == 404 and _problem(response).code == UNKNOWN_OPERATION:
            return None
        return _operation(self._checked(response))

    async def retire(self, operation_id: str, machine: str) -> None:
        """Hands the machine back for repair.

        Raises:
            Unreachable: no answer, or none that can be understood. It may have been accepted: ask, or send it again.
            Conflict: another operation on this machine has not ended.
            Refused: the token is not accepted, or the id was used for something else.
            NotFound: the provider has no such machine.
            InvalidInput: the provider does not understand the request.
        """
        body = msgspec.json.encode({"machine": machine, "action": RETIRE})
        accepted = _operation(self._checked(await self._call("PUT", operation_id, body)))
        if (accepted.id, accepted.machine, accepted.action) != (operation_id, machine, RETIRE):
            raise Unreachable(
                f"the provider answered for {accepted.action} of {accepted.machine}, not for what was asked"
            )

    async def _call(self, method: str, operation_id: str, body: bytes | None = None) -> httpx2.Response:
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise Unreachable(f"the provider's token cannot be read from {self._token_file}: {error}") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            return await self._http.request(
                method, f"/v1/operations/{quote(operation_id, safe='')}", content=body, headers=headers
            )
        except httpx2.HTTPError as error:
            raise Unreachable(
                f"the provider at {self._url} does not answer: {error or type(error).__name__}"
            ) from error

    def _checked(self, response: httpx2.Response) -> httpx2.Response:
        """The response itself if it is a success; else raises the error that it stands for."""
        if response.is_success:
            return response
        said = _problem(response)
        kinds: dict[tuple[int, str], type[EverstepError]] = {
            (400, "invalid"): InvalidInput,
            (401, "unauthorized"): Refused,
            (403, "refused"): Refused,
            (404, "notFound"): NotFound,
            (409, "conflict"): Conflict,
        }
        raise kinds.get((response.status_code, said.code), Unreachable)(
            f"the provider at {self._url} answered {response.status_code}: {said.error}"
        )


def _problem(response: httpx2.Response) -> _Problem:
    """What the error says; an empty code when the body is not one of the machine API's."""
    try:
        return msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        return _Problem("", "no machine API's answer")


def _operation(response: httpx2.Response) -> Operation:
    try:
        said = msgspec.json.decode(response.content, type=_OperationAnswer)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the provider's answer cannot be understood: {error}") from error
    return Operation(said.id, said.machine, said.action, said.state, said.message)
