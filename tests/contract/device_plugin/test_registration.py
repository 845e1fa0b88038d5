"""The device plugin against a kubelet's side of the protocol: a Registration server, then calls to the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from everstep.lab.deviceplugin import api_pb2
from everstep.lab.hardware.device_plugin import PluginEndpoint
from everstep.lab.hardware.machines import Machine, Machines
from everstep.lab.hardware.sockets import short_name
from tests.unit.lab_hardware.machine_room import machine_settings


class Kubelet:
    """Registers plugins as the kubelet's device manager does: empties the folder, listens, remembers who came."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.came: asyncio.Queue[api_pb2.RegisterRequest] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        for entry in self.folder.iterdir():
            entry.unlink()
        self._server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(
            self._register, api_pb2.RegisterRequest.FromString, api_pb2.Empty.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method})
        self._server.add_generic_rpc_handlers((handler,))
        with short_name(self.folder / "kubelet.sock") as name:
            self._server.add_insecure_port(f"unix:{name}")
            await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(grace=None)

    async def registered(self) -> api_pb2.RegisterRequest:
        return await asyncio.wait_for(self.came.get(), 5)

    async def _register(
        self, request: api_pb2.RegisterRequest, _: grpc.aio.ServicerContext[object, object]
    ) -> api_pb2.Empty:
        await self.came.put(request)
        return api_pb2.Empty()

    @asynccontextmanager
    async def plugin(self, endpoint: str) -> AsyncIterator[grpc.aio.Channel]:
        with short_name(self.folder / endpoint) as name:
            async with grpc.aio.insecure_channel(f"unix:{name}") as channel:
                yield channel


@asynccontextmanager
async def node(root: Path) -> AsyncIterator[tuple[Machine, Kubelet]]:
    machine = Machines((machine_settings(root, "gpu-1"),), {}).get("gpu-1")
    kubelet = Kubelet(Path(machine.settings.kubelet_directory) / "device-plugins")
    running = asyncio.create_task(PluginEndpoint(machine).run())
    try:
        yield machine, kubelet
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await kubelet.stop()


def devices(channel: grpc.aio.Channel) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
    call = channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch",
        request_serializer=api_pb2.Empty.SerializeToString,
        response_deserializer=api_pb2.ListAndWatchResponse.FromString,
    )
    return aiter(call(api_pb2.Empty()))


async def healths(stream: AsyncIterator[api_pb2.ListAndWatchResponse]) -> list[str]:
    return [device.health for device in (await asyncio.wait_for(anext(stream), 5)).devices]


async def allocate(channel: grpc.aio.Channel, *ids: str) -> api_pb2.AllocateResponse:
    call = channel.unary_unary(
        "/v1beta1.DevicePlugin/Allocate",
        request_serializer=api_pb2.AllocateRequest.SerializeToString,
        response_deserializer=api_pb2.AllocateResponse.FromString,
    )
    request = api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=list(ids))])
    answer = await call(request, timeout=5)
    assert isinstance(answer, api_pb2.AllocateResponse)
    return answer


def test_a_lost_gpu_turns_unhealthy_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with node(tmp_path) as (machine, kubelet):
            await kubelet.start()
            request = await kubelet.registered()
            assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
            async with kubelet.plugin(request.endpoint) as channel:
                stream = devices(channel)
                assert await healths(stream) == ["Healthy", "Healthy"]
                machine.gpus[1].fail(lost=True, recovery_action="reboot")
                machine.publish_health()
                async with asyncio.timeout(0.5):
                    assert await healths(stream) == ["Healthy", "Unhealthy"]

    asyncio.run(check())


def test_allocation_gives_device_nodes_and_refuses_what_is_broken_or_unknown(tmp_path: Path) -> None:
    async def check() -> None:
        async with node(tmp_path) as (machine, kubelet):
            await kubelet.start()
            first, second = (gpu.identity.uuid for gpu in machine.gpus)
            async with kubelet.plugin((await kubelet.registered()).endpoint) as channel:
                (answer,) = (await allocate(channel, first, second)).container_responses
                assert [d.container_path for d in answer.devices] == ["/dev/nvidia0", "/dev/nvidia1"]
                assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{first},{second}"}
                machine.gpus[1].fail(lost=True, recovery_action="reboot")
                for refused in (second, "GPU-none-such"):
                    with pytest.raises(grpc.aio.AioRpcError, match="is not a healthy GPU here"):
                        await allocate(channel, refused)

    asyncio.run(check())


def test_it_registers_again_with_every_kubelet_that_starts(tmp_path: Path) -> None:
    async def check() -> None:
        async with node(tmp_path) as (_, kubelet):
            for _ in range(3):
                await kubelet.start()
                request = await kubelet.registered()
                async with kubelet.plugin(request.endpoint) as channel:
                    assert await healths(devices(channel)) == ["Healthy", "Healthy"]
                await kubelet.stop()

    asyncio.run(check())


def test_a_dead_kubelets_socket_is_waited_out(tmp_path: Path) -> None:
    """After a power loss the old socket is still there; nobody answers on it until the node boots again."""

    async def check() -> None:
        async with node(tmp_path) as (_, kubelet):
            (kubelet.folder / "kubelet.sock").touch()
            await asyncio.sleep(0.6)  # long enough for an attempt that fails
            await kubelet.start()
            assert (await kubelet.registered()).endpoint

    asyncio.run(check())
