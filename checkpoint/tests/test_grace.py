"""How long a stop really leaves."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path

import pytest
from checkpoint_ranks import records

from everstep_checkpoint import Every, Run, grace
from everstep_checkpoint.grace import effective, parse_kill_wait, show_config

CONFIG = "KeepAliveTime           = SYSTEM_DEFAULT\nKillOnBadExit           = 0\nKillWait                = 45 sec\n"


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, 120),
        ({"SLURM_JOB_ID": "1"}, 45),
        ({"SLURM_JOB_ID": "1", "EVERSTEP_KILL_WAIT": "300"}, 120),
        ({"EVERSTEP_POD_GRACE": "60"}, 60),
        ({"TORCHELASTIC_RUN_ID": "x"}, 30),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "110"}, 110),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": ""}, 30),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}, 120),  # set, but nobody above is torchrun
        ({"SLURM_JOB_ID": "1", "TORCHELASTIC_RUN_ID": "x", "EVERSTEP_POD_GRACE": "40"}, 30),
    ],
)
def test_the_least_of_all_counts(env: dict[str, str], seconds: float) -> None:
    found = effective(120.0, env, lambda: CONFIG)
    assert found.seconds == seconds
    assert (found.warning is None) is (seconds == 120)
    if found.warning:
        assert f"planning with {seconds:g} s" in found.warning
    assert found.unknown == ()


def test_who_cannot_be_asked_is_said_and_lowers_nothing() -> None:
    assert effective(120.0, {"SLURM_JOB_ID": "1"}, lambda: None).unknown == ("Slurm",)
    found = effective(120.0, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, lambda: None)
    assert (found.seconds, len(found.unknown)) == (120.0, 1)


@pytest.mark.parametrize("name", ["EVERSTEP_KILL_WAIT", "EVERSTEP_POD_GRACE"])
def test_a_variable_that_is_no_time_is_refused(name: str) -> None:
    for text in ("", "long", "-1", "inf"):
        with pytest.raises(ValueError, match=name):
            effective(120.0, {name: text})


def test_scontrol_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert parse_kill_wait(None) is None
    for script, expected in ((f"echo '{CONFIG}'", 45.0), ("exit 1", None)):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        assert parse_kill_wait(show_config()) == expected


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & exec sleep 60", "echo 'KillWait = INVALID'", "kill -9 $$"])
def test_a_scontrol_that_hangs_or_talks_nonsense_holds_up_neither_the_start_nor_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_"))]:
        monkeypatch.delenv(name)
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("EVERSTEP_RECORD_DIR", str(tmp_path / "records"))
    monkeypatch.setattr(grace, "_PATIENCE", 0.2)
    began = time.monotonic()
    with Run(tmp_path / "run", state={}, every=Every(steps=5)) as run:
        assert time.monotonic() - began < 20, "it waited for what scontrol left behind"
        list(run.steps(12))
    (record,) = records(tmp_path)
    assert record[0]["grace"] == {"asked": 120.0, "granted": 120.0}
    assert [event["step"] for event in record if event.get("phase") == "committed"] == [5, 10, 12]


def test_a_run_warns_plans_with_less_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EVERSTEP_POD_GRACE", "20")
    with caplog.at_level(logging.WARNING), Run(tmp_path, state={}, grace=90.0) as run:
        assert run.grace == run._team.grace == 20.0
        assert run._team.leader.patience == 5.0
        list(run.steps(1))
    assert "the pod gives 20 s" in caplog.text
    assert records(tmp_path)[0][0]["grace"] == {"asked": 90.0, "granted": 20.0, "the pod": 20.0}
