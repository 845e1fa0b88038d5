"""The client of the control socket, for the command line, the demo and tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec

from everstep.core.errors import Conflict, EverstepError, InvalidInput, NotFound, Unreachable
from everstep.lab.hardware.control_api import BootAnswer, FaultAnswer, FaultRequest, GpuHistory, MachineStatus
from everstep.lab.hardware.settings import CONTROL_SOCKET
from everstep.lab.hardware.sockets import short_name

Answer = TypeVar("Answer")

RAISED: dict[str, type[EverstepError]] = {"conflict": Conflict, "invalid": InvalidInput, "notFound": NotFound}
SECONDS = 10.0


class HardwareClient:
    """Talks to the hardware of the lab in ``directory``.

    Every method raises Unreachable when nobody answers, and what the hardware's errors say otherwise.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open = ExitStack()
        try:
            name = self._open.enter_context(short_name(directory / CONTROL_SOCKET))
        except OSError as error:
            raise Unreachable(f"there is no lab in {directory}: {error.strerror}") from None
        self._http = self._open.enter_context(
            httpx2.Client(transport=httpx2.HTTPTransport(uds=name), base_url="http://hardware", timeout=SECONDS)
        )

    def __enter__(self) -> HardwareClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def status(self) -> list[MachineStatus]:
        """All machines with their GPUs."""
        return self._ask("GET", "/v1/status", list[MachineStatus])

    def gpus(self, since: float = 0.0) -> GpuHistory:
        """Samples after ``since`` (Unix seconds), of the last quarter of an hour at most."""
        return self._ask("GET", f"/v1/gpus?since={since}", GpuHistory)

    def inject(self, node: str, xid: int, gpu: int = 0) -> FaultAnswer:
        """Makes a GPU fail."""
        return self._ask("POST", f"/v1/nodes/{node}/faults", FaultAnswer, FaultRequest(xid=xid, gpu=gpu))

    def set_state(self, node: str, state: str, gpu: int = 0) -> FaultAnswer:
        """Puts a GPU into a state that only its driver tells (a name of :class:`.gpu_states.GpuState`)."""
        return self._ask("POST", f"/v1/nodes/{node}/faults", FaultAnswer, FaultRequest(state=state, gpu=gpu))

    def cut_power(self, node: str) -> FaultAnswer:
        """Ends every process of the node at once."""
        return self._ask("POST", f"/v1/nodes/{node}/faults", FaultAnswer, FaultRequest(power=True))

    def boot(self, node: str) -> str:
        """Prepares the next boot of the node; returns its boot id."""
        return self._ask("POST", f"/v1/nodes/{node}/boot", BootAnswer).boot_id

    def _ask(self, method: str, path: str, kind: type[Answer], content: Any = None) -> Answer:
        body = None if content is None else msgspec.json.encode(content)
        try:
            response = self._http.request(method, path, content=body)
        except httpx2.TransportError as error:
            raise Unreachable(f"the hardware of the lab in {self._directory} does not answer: {error}") from error
        if response.status_code >= 400:
            raise _problem(response)
        return msgspec.json.decode(response.content, type=kind)


def _problem(response: httpx2.Response) -> EverstepError:
    try:
        said = msgspec.json.decode(response.content, type=dict[str, str])
    except msgspec.DecodeError:
        said = {}
    text = said.get("error", f"the hardware answered {response.status_code}")
    return RAISED.get(said.get("code", ""), Unreachable)(text)
