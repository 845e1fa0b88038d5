"""The command: looking at checkpoints, and starting launchers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS, until

from everstep_checkpoint import Every, Run
from everstep_checkpoint.cli import main


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    with Run(tmp_path / "run", state={}, every=Every(steps=2)) as run:
        for step in run.steps(6):
            if step == 1:
                run.save("the first", pin=True)
    return tmp_path / "run"


def damage(path: Path) -> None:
    shard = path / "rank-0000.shard"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)


def test_ls_verify_and_latest(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(directory)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["step_00000002", "step_00000004", "step_00000006"]
    assert listed[0].endswith("pinned  'the first'")
    assert main(["verify", str(directory)]) == 0
    assert main(["latest", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(directory / "step_00000006")


def test_damage_is_found_and_nothing_is_changed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(directory / "step_00000006")
    before = sorted(path.name for path in directory.iterdir())
    assert main(["verify", str(directory), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["ok"]) for row in rows] == [(2, True), (4, True), (6, False)]
    assert "does not match its manifest" in rows[2]["problem"]
    assert main(["latest", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    for step in (2, 4):
        damage(directory / f"step_{step:08d}")
    assert main(["latest", str(directory)]) == 1
    assert sorted(path.name for path in directory.iterdir()) == before


def test_what_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path / "nowhere")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == 1, "nothing there is nothing verified"
    for wrong in ("0", "soon", "inf"):
        with pytest.raises(SystemExit):
            main(["exec", "--grace", wrong, "--", "true"])
        assert f"argument --grace: '{wrong}' is no number of seconds above 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["exec"])


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_exec_lets_a_bad_launcher_save_and_keeps_the_outcome(directory: Path, name: signal.Signals) -> None:
    """The stand-in does what torchrun does: its ranks in sessions of their own, and 1 as exit code after a SIGTERM."""
    target = directory.parent / "stopped"
    argv = ["-m", "everstep_checkpoint.cli", "exec", "--grace", "40", "--", sys.executable]
    argv += [str(PROGRAMS / "bad_launcher.py"), "--dir", str(target)]
    process = subprocess.Popen([sys.executable, *argv], stderr=subprocess.PIPE, text=True)
    until((target / "step_00000005").is_dir, "the training is under way")
    process.send_signal(name)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 143, said
    assert "the training has stopped, newest checkpoint: step" in said
    start = json.loads((target / "records" / "attempt-0000.jsonl").read_text().splitlines()[0])
    assert start["grace"]["torchrun"] == 35, "told to torchrun, with a margin"


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("3", 3)])
def test_exec_without_a_run_returns_what_the_program_does(code: str, expected: int) -> None:
    assert main(["exec", "--", sys.executable, "-c", f"raise SystemExit({code})"]) == expected


def test_exec_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", "--", "no-such-launcher"]) == 127
    assert "cannot start no-such-launcher" in capsys.readouterr().err


def test_exec_of_a_training_that_finishes_or_fails(tmp_path: Path) -> None:
    program = (
        "import sys; from everstep_checkpoint import Run\n"
        "with Run(sys.argv[1], state={}) as run:\n"
        "    for step in run.steps(3):\n"
        "        if len(sys.argv) > 2: raise RuntimeError\n"
        "raise SystemExit(1)\n"  # the launcher's exit code says nothing
    )
    assert main(["exec", "--", sys.executable, "-c", program, str(tmp_path / "good")]) == 0
    assert main(["exec", "--", sys.executable, "-c", program, str(tmp_path / "bad"), "fail"]) == 1


def test_the_console_script_is_there() -> None:
    script = Path(sys.executable).with_name("everstep-checkpoint")
    began = time.monotonic()
    assert "exec" in subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert time.monotonic() - began < 10


def test_a_path_is_printed_as_the_bytes_that_it_is(tmp_path: Path, directory: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\n"
    os.rename(directory, odd)
    script, env = (
        Path(sys.executable).with_name("everstep-checkpoint"),
        os.environ | {"PYTHONIOENCODING": "ascii:strict"},
    )
    done = subprocess.run([script, "latest", odd], capture_output=True, env=env, check=True)
    assert done.stdout == odd + b"/step_00000006\n"


def test_a_reader_that_has_read_enough(directory: Path) -> None:
    script, (read, write) = Path(sys.executable).with_name("everstep-checkpoint"), os.pipe()
    os.close(read)
    done = subprocess.run([script, "ls", directory], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_exec_without_a_place_for_the_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as only_here:
        only_here.setattr("tempfile.tempdir", str(tmp_path / "none"))
        assert main(["exec", "--", sys.executable, "-c", "print('it runs'); raise SystemExit(3)"]) == 3
    out, err = capfd.readouterr()
    assert out == "it runs\n"
    assert "the outcome will not be known" in err
