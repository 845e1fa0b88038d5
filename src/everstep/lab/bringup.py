"""From nothing to a cluster with Everstep on it; what does not need each other goes side by side."""

from __future__ import annotations

import asyncio
import importlib.resources
from pathlib import Path

from lightkube import AsyncClient

from everstep.lab import kubeapi, networks, nodes
from everstep.lab.imagestore import ensure_store
from everstep.lab.installation import install_everstep
from everstep.lab.pki import create_pki
from everstep.lab.switchboard import Switchboard


async def prepare(board: Switchboard, archives: list[Path], binaries: Path) -> Path:
    """Network, certificates and the image store. Returns the store."""
    board.binaries = binaries
    board.state.binaries = str(binaries)
    _allow_many_watches(board)
    store, _ = await asyncio.gather(
        ensure_store(archives, binaries, board.layout.root / "import", board.report), _network(board)
    )
    board.state.store = str(store)
    board.milestone("prepared")
    return store


_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_WANTED = 2048  # a node's containerd and kubelet take about a dozen; the kernel's default is 128 for all labs


def _allow_many_watches(board: Switchboard) -> None:
    """Raises the one limit of the whole machine that several labs run into; it stays raised until the next boot."""
    have = int(_INOTIFY.read_text())
    if have < _INOTIFY_WANTED:
        try:
            _INOTIFY.write_text(str(_INOTIFY_WANTED))
        except OSError as error:
            board.problem(f"cannot raise fs.inotify.max_user_instances from {have} ({error}): many nodes may not start")
            return
        board.report(f"raised fs.inotify.max_user_instances from {have} to {_INOTIFY_WANTED}")


async def _network(board: Switchboard) -> None:
    board.addresses = await networks.create_network(board.layout)
    board.state.index = board.addresses.index
    await create_pki(board.layout, board.addresses)
    await board.boot_control()
    board.milestone("control plane started")


async def bring_up(board: Switchboard, store: Path) -> AsyncClient:
    """Boots everything and returns when it all works. Raises LabError with the first thing that did not."""
    await asyncio.gather(*(_start_node(board, node, store) for node in board.config.all_nodes))
    board.milestone("nodes started")
    client = kubeapi.connect(board.layout.kubeconfig())
    await kubeapi.until("the API server is ready", lambda: kubeapi.api_ready(board.layout.pki, board.addresses.api), 60)
    nodes.open_gate(board.layout)
    board.milestone("API server ready")
    await kubeapi.apply(client, importlib.resources.files("everstep.lab").joinpath("manifests/lab.yaml").read_text())
    installation = asyncio.create_task(install_everstep(board, client)) if board.config.platform else None
    try:
        await _nodes_ready(board, client)
        await _dns_ready(board, client)
        if installation:
            await installation
    finally:
        if installation:
            installation.cancel()
    return client


async def _start_node(board: Switchboard, node: str, store: Path) -> None:
    await board.prepare_node(node, store)
    await board.switch_on(node)


async def _nodes_ready(board: Switchboard, client: AsyncClient) -> None:
    wanted, ready = set(board.config.all_nodes), set[str]()

    async def check() -> bool:
        ready.update(await kubeapi.ready_nodes(client))
        return wanted <= ready

    await kubeapi.until("nodes are Ready", check, 90, detail=lambda: f"missing: {', '.join(sorted(wanted - ready))}")
    board.milestone("nodes Ready")


async def _dns_ready(board: Switchboard, client: AsyncClient) -> None:
    async def check() -> bool:
        return (await kubeapi.rolled_out(client, "kube-system")).get("coredns", False)

    await kubeapi.until("cluster DNS answers", check, 60)
    board.milestone("DNS ready")
