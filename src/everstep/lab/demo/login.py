"""The researcher's side of the demo: an SSH session on the login node, and nothing that a researcher has not."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.core.attempt_records import AttemptRecord, join_attempts, read_attempt
from everstep.core.scheduler_state import AttemptProgress
from everstep.lab.errors import LabError
from everstep.lab.processes import run_now


def make_key(folder: Path) -> Path:
    """A fresh SSH key pair in ``folder``; returns the private half's path."""
    key = folder / "id_ed25519"
    run_now("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "everstep-demo", "-f", str(key))
    return key


@dataclass(frozen=True)
class Login:
    """``ssh user@host``; one connection is shared by all commands."""

    user: str
    host: str
    port: int
    key: Path

    def argv(self, *command: str) -> list[str]:
        """The argument list of one remote command."""
        options = {
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": str(self.key.parent / "known_hosts"),
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "5",
            "ControlMaster": "auto",
            "ControlPath": str(self.key.parent / "ssh-%C"),
            "ControlPersist": "120",
            "LogLevel": "ERROR",
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return [
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.key),
            "-p",
            str(self.port),
            *flags,
            f"{self.user}@{self.host}",
            *command,
        ]

    def run(self, *command: str, text: str | None = None, seconds: float = 30) -> str:
        """Runs one command there and returns its stdout. Raises LabError."""
        return run_now(*self.argv(shlex.join(command)), text=text, seconds=seconds)

    def wait(self, seconds: float) -> None:
        """Returns when the login node lets the user in. Raises LabError."""
        until(f"{self.user} can log in at {self.host}:{self.port}", seconds, lambda: bool(self.run("true") == ""))

    def write(self, path: str, content: str) -> None:
        """Writes a file in the user's home."""
        self.run("sh", "-c", f"mkdir -p $(dirname {shlex.quote(path)}) && cat > {shlex.quote(path)}", text=content)

    def close(self) -> None:
        """Ends the shared connection; fine when there is none."""
        subprocess.run(
            [*self.argv()[:-1], "-O", "exit", f"{self.user}@{self.host}"], capture_output=True, check=False, timeout=10
        )

    # --- Slurm -------------------------------------------------------------------------------------------------------
    def submit(self, *arguments: str) -> str:
        """``sbatch --parsable``; returns the job id."""
        return self.run("sbatch", "--parsable", *arguments).strip().partition(";")[0]

    def job(self, job: str) -> Mapping[str, str]:
        """State, restart count, nodes and start time of one job as squeue shows them; empty when it is gone."""
        fields = ("JobID", "State", "RestartCnt", "NodeList", "StartTime")
        out = self.run(
            "squeue", "--all", "--noheader", "--states=all", f"--jobs={job}", "-O", ",".join(f"{f}:|" for f in fields)
        )
        values = out.strip().split("|")
        return dict(zip(fields, values, strict=False)) if len(values) >= len(fields) else {}

    def hosts(self, node_list: str) -> tuple[str, ...]:
        """Slurm's compressed node list, spelled out."""
        return tuple(self.run("scontrol", "show", "hostnames", node_list).split()) if node_list else ()

    def attempts(self, job: str) -> tuple[AttemptProgress, ...]:
        """What the job wrote about its own progress."""
        # -D skip: a FIFO of that name, which anybody's job can make, would be waited at for ever.
        script = f'cd ~/.everstep/jobs/{int(job)} 2>/dev/null && grep -D skip -H "" attempt-*.jsonl || true'
        lines: dict[int, list[bytes]] = {}
        for line in self.run("sh", "-c", script).splitlines():
            name, _, text = line.partition(":")
            number = name.removeprefix("attempt-").removesuffix(".jsonl")
            if number.isdecimal():
                lines.setdefault(int(number), []).append(text.encode())
        records: list[AttemptRecord] = [read_attempt(number, lines[number]) for number in sorted(lines)]
        return join_attempts(records)


def until(what: str, seconds: float, check: Callable[[], bool], every: float = 0.25) -> None:
    """Asks until the answer is yes; raises LabError with ``what`` and the last error after ``seconds``."""
    deadline, last = time.monotonic() + seconds, ""
    while True:
        try:
            if check():
                return
            last = ""
        except LabError as error:
            last = f" (last answer: {error})"
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {seconds:g} s{last}")
        time.sleep(every)
