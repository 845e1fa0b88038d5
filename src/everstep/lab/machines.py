"""The power switch as people and as the simulated hardware use it; also what `everstep lab` may ask of a supervisor."""

from __future__ import annotations

from typing import Any

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from everstep.lab import kubeapi, nodes
from everstep.lab.errors import LabError
from everstep.lab.requests import Handler
from everstep.lab.switchboard import Switchboard

SPARE_LABEL = "everstep.io/spare-for"
_OURS = ("everstep.io/spare", "node.kubernetes.io/unschedulable")


class LabPower:
    """Implements `hardware.settings.Power` for a lab."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self.client: AsyncClient | None = None

    async def power_off(self, node: str) -> None:
        await self._board.switch_off(node)
        self._board.report(f"{node}: power off")

    async def power_on(self, node: str, as_spare_of: str | None = None) -> None:
        """Boots the node. As a spare: returns when it is Ready in its new boot and marked as a warm spare."""
        if as_spare_of:
            labels, taints = self._board.registration(node, spare=True)
            nodes.write_files(self._board.parts(node), labels, taints)
        await self._board.switch_on(node)
        self._board.report(f"{node}: power on")
        if as_spare_of:
            await self._make_spare(node, as_spare_of)

    async def wait_ready(self, node: str, seconds: float = 120) -> None:
        """Until the Node is Ready in the boot that runs now. Raises LabError."""
        client, boot_id = self._connected(), self._board.state.nodes[node].boot_id

        async def check() -> bool:
            found = await client.get(Node, node)
            info = found.status.nodeInfo if found.status else None
            return bool(info and info.bootID == boot_id) and node in await kubeapi.ready_nodes(client)

        await kubeapi.until(f"{node} is Ready after its boot", check, seconds, interval=0.3)

    async def _make_spare(self, node: str, pool: str) -> None:
        """A machine that comes back from repair is a spare; whatever its former service left on the Node goes."""
        client = self._connected()
        await self.wait_ready(node)

        async def mark() -> bool:
            found = await client.get(Node, node)
            assert found.metadata is not None
            spec = found.spec
            taints = [taint for taint in ((spec.taints if spec else None) or []) if taint.key not in _OURS]
            patch: dict[str, Any] = {
                "metadata": {
                    "resourceVersion": found.metadata.resourceVersion,
                    "labels": {SPARE_LABEL: pool, "everstep.io/pool": None, "everstep.io/out-of-service": None},
                    "annotations": {"everstep.io/claimed-by": None},
                },
                "spec": {
                    "unschedulable": None,
                    "taints": [*(taint.to_dict() for taint in taints), {"key": _OURS[0], "effect": "NoSchedule"}],
                },
            }
            try:
                await client.patch(Node, node, patch, patch_type=PatchType.MERGE)
            except ApiError as error:
                if error.status.code == 409:  # somebody wrote in between: look again
                    return False
                raise
            return True

        await kubeapi.until(f"{node} is marked as a spare", mark, 30)
        self._board.report(f"{node}: back as a spare of {pool}")

    def _connected(self) -> AsyncClient:
        if self.client is None:
            raise LabError("the lab is still starting")
        return self.client

    # --- requests of `everstep lab` ----------------------------------------------------------------------------------
    def handlers(self) -> dict[str, Handler]:
        async def cut(node: str) -> None:
            await self._board.plug(node, plugged=False)
            self._board.report(f"{node}: network cut")

        async def restore(node: str) -> None:
            await self._board.plug(node, plugged=True)
            self._board.report(f"{node}: network restored")

        async def power_on(node: str, wait: bool = True) -> None:
            self._board.parts(node)
            await self.power_on(node)
            if wait:
                await self.wait_ready(node)

        async def ping() -> str:
            return self._board.state.phase

        return {
            "ping": ping,
            "power-off": self.power_off,
            "power-on": power_on,
            "cut": cut,
            "restore": restore,
        }
