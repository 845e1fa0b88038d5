"""The demo's reader of a job's records, with the shell that the login node has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from everstep.lab.demo.login import Login


def test_what_lies_between_the_records_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ".everstep" / "jobs" / "7"
    folder.mkdir(parents=True)
    (folder / "attempt-0.jsonl").write_text('{"event": "progress", "step": 3, "time": 1.0}\n')
    (folder / "attempt-mine.jsonl").write_text("a note of the user\n")
    os.mkfifo(folder / "attempt-1.jsonl")

    def here(self: Login, *command: str, text: str | None = None, seconds: float = 30) -> str:
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout

    monkeypatch.setattr(Login, "run", here)
    (only,) = Login("ada", "", 0, tmp_path / "key").attempts("7")
    assert (only.attempt, only.highest_step) == (0, 3)
