"""The hardware of one lab as one running thing: machines, GPUs, device plugins, machine API, control socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from socket import socket

import structlog
import uvicorn
from starlette.applications import Starlette

from everstep.core.errors import InvalidInput
from everstep.lab.hardware.control_api import control_api
from everstep.lab.hardware.device_plugin import PluginEndpoint
from everstep.lab.hardware.history import History, sample_of
from everstep.lab.hardware.machine_api import machine_api
from everstep.lab.hardware.machines import Machines
from everstep.lab.hardware.processes import ProcessSampler
from everstep.lab.hardware.records import MachineState, RecordStore
from everstep.lab.hardware.retirements import Retirements
from everstep.lab.hardware.settings import CONTROL_SOCKET, RECORDS_FILE, HardwareSettings, Power
from everstep.lab.hardware.sockets import listen_tcp, listen_unix

log = structlog.get_logger(__name__)


class Hardware:
    """Holds the state; :func:`serve` gives it its sockets and its clock.

    Raises:
        Unreadable: the records of a former process cannot be understood.
    """

    def __init__(self, settings: HardwareSettings) -> None:
        self.settings = settings
        self._store = RecordStore(Path(settings.directory) / RECORDS_FILE)
        self.machines = Machines(settings.machines, self._store.records.machines)
        self.operations = self._store.records.operations
        self.history = History()
        self.api_port = settings.api_port  # the one in use, once it listens: settings may say 0 for any
        self._sampler = ProcessSampler()
        self._last: float | None = None
        self._kept: object = None

    def boot(self, node: str) -> str:
        """Prepares a boot of ``node`` and returns its boot id; call it before the node's first process starts."""
        boot_id = self.machines.get(node).start_boot()
        self.keep()
        return boot_id

    def keep(self) -> None:
        """Stores everything that must outlive this process."""
        self._store.records.machines = self.machines.keep()
        self._store.save()

    def sample(self) -> None:
        """One pass: which machines run, what their processes did, what their GPUs show."""
        now = time.monotonic()
        seconds = self.settings.sample_seconds if self._last is None else now - self._last
        self._last = now
        running = {m.name: pid for m in self.machines if (pid := m.observe()) is not None}
        with_gpus = {m.name: running[m.name] for m in self.machines if m.gpus and m.name in running}
        loads = self._sampler.sample(now, with_gpus) if with_gpus else {}
        wall = time.time()
        for machine in self.machines:
            if machine.name in running:
                machine.advance(seconds, loads.get(machine.name, {}))
                machine.report(wall)
            if machine.gpus:
                on = machine.record.state is MachineState.RUNNING
                self.history.add(sample_of(wall, machine.name, on, machine.readings()))
        if (present := [(m.record.state, m.record.boot) for m in self.machines]) != self._kept:
            self._kept = present
            self.keep()

    async def run(self) -> None:
        """Samples for ever, at the pace of the settings."""
        while True:
            self.sample()
            await asyncio.sleep(self.settings.sample_seconds)


@asynccontextmanager
async def hardware(settings: HardwareSettings, power: Power) -> AsyncIterator[Hardware]:
    """The hardware, running while the block runs; both HTTP interfaces answer when the block is entered.

    A part of it that ends by itself cancels the block, with the reason in the exception group.

    Raises:
        OSError: an address cannot be listened on.
        InvalidInput: the token file holds no usable token.
        Unreadable: see :class:`Hardware`.
    """
    state = Hardware(settings)
    token = read_or_make_token(Path(settings.token_file))
    operations = Retirements(state.machines, state.operations, power, settings.repair_seconds, state.keep)
    control = control_api(state.machines, state.history, power, state.keep)
    machines = machine_api(state.machines, operations, token)
    state.sample()
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.push_async_callback(operations.close)
        control_socket = Path(settings.directory) / CONTROL_SOCKET
        listener = listen_tcp(settings.api_host, settings.api_port, settings.api_namespace)
        state.api_port = listener.getsockname()[1]
        await stack.enter_async_context(_answering(machines, listener))
        await stack.enter_async_context(_answering(control, listen_unix(control_socket)))
        operations.resume()
        tasks = [group.create_task(state.run(), name="gpu sampling")]
        for machine in state.machines:
            if machine.gpus:
                plugin = PluginEndpoint(machine)
                tasks.append(group.create_task(plugin.run(), name=f"device plugin of {machine.name}"))
        try:
            yield state
        finally:
            control_socket.unlink(missing_ok=True)
            for task in tasks:
                task.cancel()


async def serve(settings: HardwareSettings, power: Power, ready: asyncio.Event | None = None) -> None:
    """Runs the hardware until it is cancelled; sets ``ready`` once everything answers. Raises as :func:`hardware`."""
    async with hardware(settings, power):
        log.info("hardware ready", lab=settings.lab, machines=len(settings.machines))
        if ready is not None:
            ready.set()
        await asyncio.Event().wait()


def read_or_make_token(path: Path) -> str:
    """The token in ``path``; makes one, readable by the owner only, when there is no such file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        token = path.read_text(encoding="ascii").strip()
        if not token:
            raise InvalidInput(f"{path} is empty: put a token in it, or remove it to have one made") from None
        return token
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        token = secrets.token_urlsafe(32)
        file.write(token)
    return token


class _Server(uvicorn.Server):
    """uvicorn inside a process that has signal handlers of its own; ``answering`` is set once it accepts."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()


@asynccontextmanager
async def _answering(application: Starlette, listener: socket) -> AsyncIterator[None]:
    config = uvicorn.Config(
        application, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, ws="none"
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.answering.wait()
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()
