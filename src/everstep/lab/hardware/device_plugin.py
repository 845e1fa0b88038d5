"""``nvidia.com/gpu`` for one node, over the kubelet's real device-plugin protocol.

The kubelet of a lab node listens in its own mount namespace; the same socket is reached here by its path on the host,
since Unix sockets belong to the file system. When the kubelet starts it empties the folder of plugin sockets and makes
its own anew: then the plugin listens again and registers again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import structlog

from everstep.lab.deviceplugin import api_pb2
from everstep.lab.hardware.machines import Machine
from everstep.lab.hardware.sockets import short_name

log = structlog.get_logger(__name__)

RESOURCE = "nvidia.com/gpu"
ENDPOINT = "everstep-gpu.sock"
KUBELET_SOCKET = "kubelet.sock"
VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"  # deviceplugin/v1beta1/constants.go
LOOK_SECONDS = 0.25  # one stat a node: cheap, and the node's GPUs wait for it
CALL_SECONDS = 5.0

SocketIdentity = tuple[int, int]  # inode and change time: a socket made anew differs in one of them
Context = grpc.aio.ServicerContext[object, object]


class DevicePlugin:
    """The service ``v1beta1.DevicePlugin`` for the GPUs of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods with their wire types, as generated service code would list them."""
        empty = api_pb2.Empty.FromString
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                    self.options, empty, api_pb2.DevicePluginOptions.SerializeToString
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self.list_and_watch, empty, api_pb2.ListAndWatchResponse.SerializeToString
                ),
                "Allocate": grpc.unary_unary_rpc_method_handler(
                    self.allocate, api_pb2.AllocateRequest.FromString, api_pb2.AllocateResponse.SerializeToString
                ),
            },
        )

    async def options(self, _: api_pb2.Empty, __: Context) -> api_pb2.DevicePluginOptions:
        """Neither preferred allocation nor a call before container start."""
        return api_pb2.DevicePluginOptions()

    async def list_and_watch(self, _: api_pb2.Empty, __: Context) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        """All devices now, and again at every change of their health."""
        while True:
            version = self._machine.health_version
            yield api_pb2.ListAndWatchResponse(
                devices=[
                    api_pb2.Device(ID=g.identity.uuid, health=HEALTHY if g.healthy else UNHEALTHY)
                    for g in self._machine.gpus
                ]
            )
            await self._machine.health_after(version)

    async def allocate(self, request: api_pb2.AllocateRequest, context: Context) -> api_pb2.AllocateResponse:
        """Device nodes and the variable that GPU runtimes read; refuses devices that are unknown or unhealthy."""
        gpus = {gpu.identity.uuid: gpu for gpu in self._machine.gpus}
        answers = []
        for container in request.container_requests:
            chosen = []
            for device in container.devices_ids:
                if device not in gpus or not gpus[device].healthy:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{device} is not a healthy GPU here")
                chosen.append(gpus[device].identity)
            answers.append(
                api_pb2.ContainerAllocateResponse(
                    envs={"NVIDIA_VISIBLE_DEVICES": ",".join(who.uuid for who in chosen)},
                    devices=[
                        # simulated GPUs have no driver: a device node that opens and takes anything stands for them
                        api_pb2.DeviceSpec(
                            container_path=f"/dev/nvidia{who.index}", host_path="/dev/null", permissions="rw"
                        )
                        for who in chosen
                    ],
                )
            )
        return api_pb2.AllocateResponse(container_responses=answers)


class PluginEndpoint:
    """Keeps one machine's device plugin registered with its node's kubelet, however often that restarts."""

    def __init__(self, machine: Machine) -> None:
        self._plugin = DevicePlugin(machine)
        self._node = machine.name
        self._folder = Path(machine.settings.kubelet_directory) / "device-plugins"

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            kubelet = await self._kubelet_other_than(None)
            try:
                async with self._listening():
                    await self._register()
                    log.info("device plugin registered", node=self._node)
                    await self._kubelet_other_than(kubelet)
            except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
                # a kubelet that is just starting or was killed; RuntimeError is grpc's word for "cannot bind"
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                log.debug("device plugin not registered", node=self._node, reason=reason)
                await self._kubelet_other_than(kubelet, at_most=1.0)

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._plugin.handler(),))
        with short_name(self._folder / ENDPOINT) as path:
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            try:
                yield
            finally:
                await server.stop(grace=None)

    async def _register(self) -> None:
        request = api_pb2.RegisterRequest(version=VERSION, endpoint=ENDPOINT, resource_name=RESOURCE)
        with short_name(self._folder / KUBELET_SOCKET) as path:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                register = channel.unary_unary(
                    "/v1beta1.Registration/Register",
                    request_serializer=api_pb2.RegisterRequest.SerializeToString,
                    response_deserializer=api_pb2.Empty.FromString,
                )
                await register(request, timeout=CALL_SECONDS)

    async def _kubelet_other_than(self, known: SocketIdentity | None, at_most: float | None = None) -> SocketIdentity:
        """Waits for a kubelet socket that is not ``known``; returns it, or ``known`` itself after ``at_most`` s."""
        looks = iter(range(int(at_most / LOOK_SECONDS))) if at_most is not None else _for_ever()
        for _ in looks:
            found = self._kubelet_socket()
            if found is not None and found != known:
                return found
            await asyncio.sleep(LOOK_SECONDS)
        assert known is not None
        return known

    def _kubelet_socket(self) -> SocketIdentity | None:
        try:
            status = os.stat(self._folder / KUBELET_SOCKET)
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns


def _for_ever() -> Iterator[int]:
    while True:
        yield 0
