"""The lab's network: a namespace with the bridge and the control plane, one a node, one veth to the host.

Nothing listens in the host's namespace and the lab has no route out: what runs in it can reach the lab and the host's
end of the veth, nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import socket
import threading
from pathlib import Path

from everstep.lab.errors import LabError
from everstep.lab.layout import MAX_LABS, Addresses, LabLayout
from everstep.lab.processes import run

# The gateway's own hardware address. A bridge that is given none borrows the lowest of its ports: when that machine's
# power goes, the address changes, and no node reaches any other until it has forgotten the old one (up to a minute).
_BRIDGE = "02:00:00:00:00:01"
_NETNS_DIR = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


def _taken(addresses: Addresses, routes: str) -> bool:
    wanted = (addresses.nodes, addresses.pods, addresses.host_network)
    for route in json.loads(routes):
        with contextlib.suppress(ValueError):  # "default" and the like name no range
            there = ipaddress.IPv4Network(route["dst"])
            if there.prefixlen and any(there.overlaps(network) for network in wanted):
                return True
    return False


async def create_network(layout: LabLayout) -> Addresses:
    """Makes the lab's own namespace and bridge, linked to the host; returns the addresses that it now owns.

    Raises LabError if another lab of this name runs, or no address range is free.
    """
    control = layout.netns()
    if (_NETNS_DIR / control).exists():
        raise LabError(
            f"a lab named {layout.name!r} is (or was) up on this machine: `everstep lab down --name {layout.name}`"
        )
    await run("ip", "netns", "add", control)
    addresses = await _claim(layout)
    inside = f"""link set lo up
link add br0 address {_BRIDGE} type bridge
addr add {addresses.gateway}/24 dev br0
link set br0 up
addr add {addresses.uplink}/30 dev host0
link set host0 up
"""
    outside = f"""addr add {addresses.host}/30 dev {addresses.host_link}
link set {addresses.host_link} up
route add {addresses.nodes} via {addresses.uplink}
route add {addresses.pods} via {addresses.uplink}
"""
    await run("ip", "-n", control, "-batch", "-", text=inside)
    await run("ip", "-batch", "-", text=outside)
    await in_network(control, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    return addresses


async def _claim(layout: LabLayout) -> Addresses:
    routes = await run("ip", "-json", "-4", "route", "show", "table", "all")
    for index in range(MAX_LABS):
        addresses = Addresses(index)
        if _taken(addresses, routes):
            continue
        try:
            await run(
                "ip",
                "link",
                "add",
                addresses.host_link,
                "type",
                "veth",
                "peer",
                "name",
                "host0",
                "netns",
                layout.netns(),
            )
        except LabError as error:
            if "File exists" in str(error):  # another lab was quicker
                continue
            raise
        await run("ip", "link", "set", addresses.host_link, "alias", f"everstep lab {layout.root}")
        return addresses
    raise LabError(
        f"no free address range: {MAX_LABS} labs run already, or your routes cover 198.18.0.0/15 (`ip route`)"
    )


async def connect_node(layout: LabLayout, addresses: Addresses, node: str, number: int) -> None:
    """Makes the node's namespace and plugs it into the bridge."""
    control, netns = layout.netns(), layout.netns(node)
    await run("ip", "netns", "add", netns)
    await run(
        "ip", "-n", control, "-batch", "-",
        text=f"""link add ve-{node} type veth peer name eth0 netns {netns}
link set ve-{node} master br0 up
route replace {addresses.node_pods(number)} via {addresses.node(number)}
""",
    )  # fmt: skip
    await run(
        "ip", "-n", netns, "-batch", "-",
        text=f"""link set lo up
addr add {addresses.node(number)}/24 dev eth0
link set eth0 up
route add default via {addresses.gateway}
""",
    )  # fmt: skip
    await in_network(netns, "sysctl", "-qw", "net.ipv4.ip_forward=1")


async def disconnect_node(layout: LabLayout, node: str) -> None:
    """Unplugs the node and forgets its namespace; nothing happens if it has none."""
    for argv in (["-n", layout.netns(), "link", "del", f"ve-{node}"], ["netns", "del", layout.netns(node)]):
        with contextlib.suppress(LabError):
            await run("ip", *argv)


async def set_cable(layout: LabLayout, node: str, *, plugged: bool) -> None:
    """Pulls the node's network cable, or puts it back."""
    await run("ip", "-n", layout.netns(), "link", "set", f"ve-{node}", "up" if plugged else "down")


async def in_network(netns: str, *argv: str) -> str:
    """Runs a program in a namespace (not by `ip netns exec`, which hides the cgroups)."""
    return await run("nsenter", f"--net={_NETNS_DIR / netns}", *argv)


def namespaces_of(lab: str) -> list[str]:
    """The network namespaces that carry the lab's name."""
    prefix = f"ev-{lab}-"
    names = (entry.name for entry in _NETNS_DIR.iterdir()) if _NETNS_DIR.is_dir() else iter(())
    # Lab "a" must not claim lab "a-b"'s: what follows its own prefix is a node's name or "ctl".
    return sorted(name for name in names if name.startswith(prefix) and _is_node(name.removeprefix(prefix)))


def _is_node(name: str) -> bool:
    kind, _, number = name.partition("-")
    return name == "ctl" or (kind in ("sys", "gpu") and number.isdigit())


def listen(netns: str, host: str, port: int) -> socket.socket:
    """A listening TCP socket that lives in another namespace, for a server of this process.

    Raises LabError if the namespace is gone or the port is taken.
    """
    result: list[socket.socket | Exception] = []

    def open_there() -> None:
        # setns moves the calling thread only; this thread ends right after.
        try:
            descriptor = os.open(_NETNS_DIR / netns, os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {netns}")
            finally:
                os.close(descriptor)
            result.append(socket.create_server((host, port)))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=open_there)
    thread.start()
    thread.join()
    (outcome,) = result
    if isinstance(outcome, Exception):
        raise LabError(f"cannot listen on {host}:{port} in {netns}: {outcome}") from outcome
    return outcome
