"""Ports of InfiniBand, RoCE and EFA adapters, by sysfs.

Read of each port: ``state``, ``phys_state`` and ``link_layer``, and of the counters only those that a rule needs.
Nothing else, because some reads make the driver print an error: on a restricted function every read of a counter is a
refused ACCESS_REG, and agents have flooded kernel logs that way (leptonai/gpud 1164, node_exporter 3434). So virtual
functions are left alone, and a function that refuses one counter is never asked for its counters again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from everstep.adapters.node.files import names, read_number, read_word, since_boot
from everstep.core.health import Evidence
from everstep.core.node_state.counters import PORT_COUNTERS, Counter, counted, counter_evidence
from everstep.core.node_state.port_watch import PortHistory, port_evidence, with_port_reading

PERIOD = 5.0  # seconds: a flap is 25 s long
_COUNTERS_EVERY = 30.0
_FOLDERS = ("counters", "hw_counters")
_GONE = "no driver lists it"


class RdmaPorts:
    """Looks at every port of the fabric.

    Args:
        root: where the host's ``/sys`` and ``/proc`` are found.
        expected: ports (``mlx5_0/1``) that must be up, whether or not they were seen up.
        known: ports that are on record as down: they were in use before this process began.
        at_once: a port that must be up and is not counts at the first look.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        expected: Iterable[str] = (),
        known: Iterable[str] = (),
        clock: Callable[[], float] = since_boot,
        *,
        at_once: bool = False,
    ) -> None:
        expected = tuple(expected)
        self._must_be_up = frozenset(expected if at_once else ())
        self._class = root / "sys/class/infiniband"
        self._routes = (root / "proc/1/net/route", root / "proc/net/route")
        self._clock = clock
        self._ports = {port: PortHistory(in_use=True) for port in expected}
        self._ports |= {port: PortHistory(in_use=True, seen_up=True) for port in known}
        self._counters: dict[str, dict[str, Counter]] = {}
        self._refused: set[str] = set()
        self._counted_at = float("-inf")

    def look(self) -> Sequence[Evidence]:
        """One reading of all ports. OSError when sysfs cannot be read."""
        now = self._clock()
        with_counters = now - self._counted_at >= _COUNTERS_EVERY
        seen = set()
        management = self._management_interfaces()
        for device in names(self._class):
            if self._is_left_alone(device, management):
                self._forget(device)
                continue
            for number in names(self._class / device / "ports"):
                port = f"{device}/{number}"
                seen.add(port)
                self._look_at(port, self._class / device / "ports" / number, now)
                if with_counters and device not in self._refused:
                    self._count(device, port, self._class / device / "ports" / number, now)
        if with_counters:
            self._counted_at = now
        for port in self._ports.keys() - seen:
            self._ports[port] = with_port_reading(self._ports[port], up=False, words=_GONE, now=now)
        found: list[Evidence] = []
        for port, history in sorted(self._ports.items()):
            if port in self._must_be_up and history.down_since is not None:
                text = f"port {port} is down: {history.words}"
                found.append(Evidence("ib", "port_drop", subject=port, line=text))
            else:
                found += port_evidence(port, history, now)
            if history.in_use:
                found += counter_evidence(port, self._counters.get(port, {}), now)
        return found

    def _look_at(self, port: str, folder: Path, now: float) -> None:
        state = read_word(folder / "state")  # "4: ACTIVE"
        if state is None:
            return
        physical = read_word(folder / "phys_state") or ""  # "5: LinkUp"
        before = self._ports.get(port, PortHistory(in_use=False))
        words = f"state {state.split(': ')[-1]}, physical state {physical.split(': ')[-1] or 'unknown'}"
        self._ports[port] = with_port_reading(before, up=state.startswith("4"), words=words, now=now)

    def _count(self, device: str, port: str, folder: Path, now: float) -> None:
        counters = self._counters.setdefault(port, {})
        for name in PORT_COUNTERS:
            for kind in _FOLDERS:
                try:
                    value = read_number(folder / kind / name)
                except OSError:
                    self._refused.add(device)
                    self._counters.pop(port, None)
                    return
                if value is not None:
                    counters[name] = counted(counters.get(name), value, now)
                    break

    def _is_left_alone(self, device: str, management: set[str]) -> bool:
        """Virtual functions belong to somebody else; the port with the default route is the node's own network."""
        hardware = self._class / device / "device"
        if (hardware / "physfn").exists():
            return True
        return bool(management & set(names(hardware / "net")))

    def _forget(self, device: str) -> None:
        self._ports = {port: past for port, past in self._ports.items() if port.rpartition("/")[0] != device}

    def _management_interfaces(self) -> set[str]:
        """Interfaces of the host that carry a default route (IPv4, proc(5))."""
        for path in self._routes:
            try:
                table = read_word(path)
            except OSError:
                continue  # another process's, and not ours to read
            if table:
                rows = [line.split() for line in table.splitlines()[1:]]
                return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}
        return set()
