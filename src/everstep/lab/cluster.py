"""The lab for programs: pytest, the demo, the command line. Synchronous; nothing here needs an event loop.

with Lab.up(LabConfig(name="mine")) as lab:
    lab.kubectl("get", "nodes")
    lab.power_off("gpu-1")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from everstep.lab import networks, processes
from everstep.lab.errors import LabError
from everstep.lab.hardware.client import HardwareClient
from everstep.lab.layout import (
    CONTROL,
    COVERED,
    Addresses,
    LabConfig,
    LabLayout,
    LabPlan,
    cache_dir,
    existing_labs,
    labs_dir,
)
from everstep.lab.requests import ask
from everstep.lab.state import Event, LabState, read_events, read_state
from everstep.lab.teardown import tear_down

Report = Callable[[str], None]
UP_TIMEOUT = 240.0  # seconds; a warm `up` takes a dozen, unpacking images once a minute


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Lab:
    """One lab that exists. Make one with `Lab.up`, find one with `Lab.find`."""

    layout: LabLayout
    plan: LabPlan

    # --- life --------------------------------------------------------------------------------------------------------
    @classmethod
    def up(cls, plan: LabPlan, report: Report = _silent) -> Lab:
        """Brings a lab up and returns when all of it works; `report` hears every milestone.

        `setup.plan_lab(config)` makes the plan. Raises LabError with the first thing that failed; what there is of
        the lab stays for a look at its logs until `down`. Interrupted (Ctrl-C), it leaves nothing.
        """
        plan.config.check()
        _check_place()
        layout = LabLayout.of(plan.config.name)
        if layout.root.exists() or networks.namespaces_of(layout.name):
            raise LabError(f"there is a lab {layout.name!r} already: `everstep lab down --name {layout.name}` ends it")
        try:
            layout.root.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise LabError(f"somebody else is just bringing a lab {plan.config.name!r} up") from None
        except OSError as error:
            raise LabError(f"cannot make the lab's directory {layout.root}: {error.strerror}") from error
        lab, process = cls(layout, plan), None
        try:
            process = lab._supervisor()
            lab._follow(process, report)
        except Exception:
            raise
        except BaseException:
            report("interrupted: ending it")
            if process is not None:  # before it is in the lab's control group, nothing else would find it
                process.kill()
                process.wait()
            tear_down(layout)
            raise
        return lab

    def _supervisor(self) -> subprocess.Popen[bytes]:
        self.layout.plan_file.write_bytes(msgspec.json.encode(self.plan))
        with self.layout.supervisor_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "everstep.lab.supervisor", self.layout.name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "EVERSTEP_STATE": str(labs_dir()), "EVERSTEP_CACHE": str(cache_dir())},
            )  # fmt: skip

    def _follow(self, process: subprocess.Popen[bytes], report: Report) -> None:
        offset, deadline = 0, time.monotonic() + UP_TIMEOUT
        while True:
            ended = process.poll() is not None  # before reading: what it said last must not be missed
            events, offset = read_events(self.layout.events_file, offset)
            for event in events:
                report(event.text)
            state = read_state(self.layout)
            if state and state.phase == "ready":
                return
            if ended:
                why = state.message if state and state.message else "its supervisor ended"
                hint = (
                    f"log: {self.layout.supervisor_log}; `everstep lab down --name {self.layout.name}` clears it away"
                )
                raise LabError(f"lab {self.layout.name!r} did not come up: {why} ({hint})")
            if time.monotonic() > deadline:
                raise LabError(
                    f"lab {self.layout.name!r} is not up after {UP_TIMEOUT:g} s (log: {self.layout.supervisor_log})"
                )
            time.sleep(0.05)

    @classmethod
    def find(cls, name: str | None = None) -> Lab:
        """The lab of that name; without one, the only lab there is. Raises LabError."""
        names = existing_labs()
        if name is None:
            if len(names) != 1:
                found = (
                    f"there are several ({', '.join(names)}): choose with --name"
                    if names
                    else "none is up: `everstep lab up`"
                )
                raise LabError(f"which lab? {found}")
            name = names[0]
        layout = LabLayout.of(name)
        try:
            return cls(layout, msgspec.json.decode(layout.plan_file.read_bytes(), type=LabPlan))
        except FileNotFoundError:
            others = f"; there is {', '.join(names)}" if names else ""
            raise LabError(f"no lab {name!r}{others}; `everstep lab up --name {name}` makes it") from None

    def down(self, *, keep_files: bool = False) -> None:
        """Ends the lab and leaves nothing of it (with `keep_files`, its directory)."""
        tear_down(self.layout, keep_files=keep_files)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # --- looking -----------------------------------------------------------------------------------------------------
    @property
    def config(self) -> LabConfig:
        return self.plan.config

    @property
    def state(self) -> LabState:
        """What the supervisor wrote last. Raises LabError if it has not written yet."""
        state = read_state(self.layout)
        if state is None:
            raise LabError(f"lab {self.layout.name!r} has not started: see {self.layout.supervisor_log}")
        return state

    @property
    def addresses(self) -> Addresses:
        index = self.state.index
        if index is None:
            raise LabError(f"lab {self.layout.name!r} has no network yet")
        return Addresses(index)

    def node_address(self, node: str) -> str:
        """The node's IPv4 address, reachable from the host (so are pods')."""
        return self.addresses.node(self.config.all_nodes.index(node))

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig()

    @property
    def _kubectl_cache(self) -> str:
        """With the rest of the lab, so that it goes with it: by itself kubectl would leave it in the user's home."""
        return str(self.layout.root / "kubectl")

    @property
    def environment(self) -> dict[str, str]:
        """What a shell needs for `kubectl` and `helm` to mean this lab."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.plan.binaries}:{os.environ.get('PATH', '')}",
            "KUBECACHEDIR": self._kubectl_cache,
            "NO_PROXY": "*",
            "EVERSTEP_LAB": self.layout.name,
        }

    def events(self) -> list[Event]:
        return read_events(self.layout.events_file)[0]

    # --- doing -------------------------------------------------------------------------------------------------------
    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = 60) -> str:
        """Runs kubectl as the lab's admin and returns its stdout; `text` is its stdin. Raises LabError."""
        kubectl = str(Path(self.plan.binaries) / "kubectl")
        fixed = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self._kubectl_cache}")
        return processes.run_now(kubectl, *fixed, *arguments, text=text, seconds=seconds)

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, decoded."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def power_off(self, node: str) -> None:
        """Every process of the node is gone when this returns."""
        ask(self.layout, "power-off", node=node)

    def power_on(self, node: str, *, wait: bool = True) -> None:
        """Boots the node; with `wait`, returns when it is Ready in its new boot."""
        ask(self.layout, "power-on", node=node, wait=wait)

    def cut(self, node: str) -> None:
        """Pulls the node's network cable."""
        ask(self.layout, "cut", node=node)

    def restore(self, node: str) -> None:
        """Puts the cable back."""
        ask(self.layout, "restore", node=node)

    def inject(self, node: str, xid: int, gpu: int = 0) -> float:
        """Breaks a simulated GPU; returns when that happened, Unix seconds."""
        with self.hardware() as hardware:
            return hardware.inject(node, xid, gpu).at

    def set_gpu_state(self, node: str, state: str, gpu: int = 0) -> float:
        """Puts a simulated GPU into a state that only its driver tells; returns when, Unix seconds."""
        with self.hardware() as hardware:
            return hardware.set_state(node, state, gpu).at

    def hardware(self) -> HardwareClient:
        """A client of the simulated hardware, to use as a context manager."""
        return HardwareClient(self.layout.root)

    def inside(self, node: str, *argv: str) -> list[str]:
        """The argument list that runs a program inside a node (or `ctl`, the control plane)."""
        holder = self.state.nodes[node].holder if node in self.state.nodes else None
        if holder is None or not holder.alive:
            known = [CONTROL, *self.config.all_nodes]
            if node in known:
                raise LabError(f"{node} does not run: `everstep lab power-on {node}` boots it")
            raise LabError(f"no node {node!r} in lab {self.layout.name}; it has {', '.join(known)}")
        first = processes.first_child(holder.pid)
        if first is None:
            raise LabError(f"{node} is just starting or ending: try again")
        return ["nsenter", f"--target={first}", "--all", *argv]

    def execute(self, node: str, *argv: str, seconds: float = 60) -> str:
        """Runs a program inside a node, returns its stdout. Raises LabError."""
        return processes.run_now(*self.inside(node, *argv), seconds=seconds)


def remove(name: str) -> None:
    """Ends whatever there is of a lab of that name, even if its directory is damaged or gone."""
    tear_down(LabLayout.of(name))


def _check_place() -> None:
    if os.geteuid() != 0:
        raise LabError("a lab needs root (namespaces, mounts, control groups): run it with sudo")
    for what, path in (("EVERSTEP_STATE", labs_dir()), ("EVERSTEP_CACHE", cache_dir())):
        for covered in COVERED:
            with suppress(ValueError):
                path.resolve().relative_to(covered)
                raise LabError(f"{what} is {path}: lab nodes have their own {covered}, so choose another place")
