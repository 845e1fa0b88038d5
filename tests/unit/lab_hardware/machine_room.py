"""A machine room for tests: machines whose first processes are plain sleeping processes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from everstep.lab.hardware.settings import HardwareSettings, MachineSettings


def machine_settings(root: Path, name: str, gpus: int = 2, pool: str | None = "main") -> MachineSettings:
    folder = root / name
    (folder / "kubelet" / "device-plugins").mkdir(parents=True, exist_ok=True)
    return MachineSettings(name, gpus, str(folder / "run"), str(folder / "kubelet"), str(folder / "pid"), pool)


def hardware_settings(root: Path, *names: str, repair_seconds: float = 0.2) -> HardwareSettings:
    return HardwareSettings(
        lab="test",
        directory=str(root),
        machines=tuple(machine_settings(root, name) for name in names),
        api_host="127.0.0.1",
        api_port=0,
        token_file=str(root / "token"),
        repair_seconds=repair_seconds,
        sample_seconds=0.1,
    )


@dataclass
class SleepingPower:
    """Implements Power: a machine that is on is a process that sleeps. ``calls`` lists what was asked for."""

    root: Path
    calls: list[tuple[str, str, str | None]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, node: str, *command: str) -> int:
        process = subprocess.Popen(command or ("sleep", "600"))
        self.running[node] = process
        (self.root / node / "pid").write_text(f"{process.pid}\n")
        return process.pid

    async def power_off(self, node: str) -> None:
        self.calls.append(("off", node, None))
        self._fail()
        self.kill(node)

    async def power_on(self, node: str, as_spare_of: str | None) -> None:
        self.calls.append(("on", node, as_spare_of))
        self._fail()
        if node not in self.running:
            self.start(node)

    def kill(self, node: str) -> None:
        if process := self.running.pop(node, None):
            process.kill()
            process.wait()

    def close(self) -> None:
        for node in list(self.running):
            self.kill(node)

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
