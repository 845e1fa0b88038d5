"""The agents that stand side by side: how each is started, stopped and listened to."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.contract.kubernetes.api_server import ApiServer, free_port

from beside.kernel_log import KernelWriter
from beside.lines import FAMILIES, PROBES_A_START, XID, probe
from beside.reports import EventReports, NodeHealthReports, OutputReports, Reports

NODE = "bench"
_STARTS_WITHIN = 60.0  # seconds
_WAKE_EVERY = 1.0  # seconds between two lines that a starting peer should report
_STOPS_WITHIN = 10.0
_boots = itertools.count(1)


def _spawn(command: Sequence[str], output: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOPS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Everstep:
    """Our agent, which reads ``/dev/kmsg`` and eight simulated GPUs and writes to a real API server."""

    def __init__(self, api: ApiServer, folder: Path, name: str = "everstep") -> None:
        self.name = name
        self.family = XID
        self._api = api
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)

    def version(self) -> str:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        return f"{done.stdout.strip() or 'unknown'}, Python {sys.version.split()[0]}"

    def start(self, writer: KernelWriter) -> float:
        self._api.kubectl("delete", "nodehealth", NODE, "--ignore-not-found")
        gpus = [
            {"index": index, "uuid": f"GPU-{index}", "serial": f"165000{index}", "pci": f"0000:{0x20 + index:02x}:00"}
            for index in range(8)
        ]
        state = self._folder / "gpus.json"
        state.write_text(json.dumps({"boot_id": f"boot-{next(_boots)}", "gpus": gpus}))
        self.reports: Reports
        self.reports = health = NodeHealthReports(self._api.kubeconfig, NODE)
        command = [sys.executable, "-m", "everstep.apps.agent", "--node", NODE, "--allow-injected"]
        command += ["--simulated-gpus", str(state), "--kubeconfig", str(self._api.kubeconfig)]
        began = time.monotonic()
        self._process = _spawn(command, self._folder / "output.log", dict(os.environ))
        self.pid = self._process.pid
        verdict = health.wait_verdict(_STARTS_WITHIN)
        if verdict == "Unknown":  # Faulty would be another program's line in the kernel log, which disturbs nothing
            log = (self._folder / "output.log").read_text()[-800:]
            raise SystemExit(f"the agent starts with the verdict Unknown; it says:\n{log}")
        return time.monotonic() - began

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None
            self.reports.close()


@dataclass(frozen=True, slots=True)
class PeerCommand:
    """How a peer is run and listened to.

    Attributes:
        command: with placeholders.
        says: the pattern of the lines of its output that are its reports; None: its reports are Kubernetes Events.
    """

    name: str
    command: str
    says: str | None


class Peer:
    """Another agent, run as its users would run it."""

    def __init__(self, how: PeerCommand, api: ApiServer, folder: Path) -> None:
        self.name = how.name
        self.family = XID
        self._how = how
        self._api = api
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)

    def version(self) -> str:
        """What the program answers to ``--version``; its first line."""
        words = [word for word in shlex.split(self._how.command) if word != "env" and "=" not in word.split("/")[0]]
        done = subprocess.run([words[0], "--version"], capture_output=True, text=True, check=False, timeout=30)
        return (done.stdout + done.stderr).strip().partition("\n")[0]

    def start(self, writer: KernelWriter) -> float:
        state = self._folder / f"state-{next(_boots)}"
        state.mkdir()
        places = {
            "folder": str(state), "port": free_port(), "other_port": free_port(), "node": NODE,
            "kubeconfig": str(self._api.kubeconfig), "server": f"https://127.0.0.1:{self._api.port}",
        }  # fmt: skip
        output = self._folder / "output.log"
        output.touch()
        self.reports: Reports
        if self._how.says is None:
            self._api.kubectl("delete", "events", "--all", "--all-namespaces")
            self.reports = EventReports(self._api.kubeconfig, NODE)
        else:
            self.reports = OutputReports(output, self._how.says)
        began = time.monotonic()
        self._process = _spawn(
            shlex.split(self._how.command.format(**places)), output, dict(os.environ, NODE_NAME=NODE)
        )
        self.pid = self._process.pid
        for number in range(int(_STARTS_WITHIN / _WAKE_EVERY)):
            if self._process.poll() is not None:
                raise SystemExit(f"{self.name} ended; it says:\n{output.read_text(errors='replace')[-800:]}")
            for family in FAMILIES:
                wake = probe(family, PROBES_A_START + number)
                writer.write(wake.line)
                if self.reports.wait(wake.marker, _WAKE_EVERY / len(FAMILIES)) is not None:
                    self.family = family
                    self.reports.skip()
                    return time.monotonic() - began
        raise SystemExit(f"{self.name} has reported neither an XID nor a hung task within {_STARTS_WITHIN:.0f} s")

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None
            self.reports.close()
