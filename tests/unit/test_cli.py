"""What `everstep` says to somebody who typed it wrong: one line that says what, and where to read on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from everstep.apps.cli import app, main
from everstep.lab.errors import LabError


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below that one, with the words that call it."""
    below = getattr(command, "commands", {})
    if not below:
        yield " ".join(path), command
    for name, one in below.items():
        yield from commands(one, (*path, name))


COMMANDS = dict(commands(get_command(app)))
NOT_OURS = {"lab exec"}  # its output is that of the program which it runs


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    examples = [line for line in str(COMMANDS[name].help).splitlines() if line.strip().startswith("Example: ")]
    assert any(f"everstep {name}" in line for line in examples)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - NOT_OURS))
def test_every_command_speaks_to_machines(name: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params)


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("faults explain 79", {"advice", "rows"}),
        ("faults list --kind sxid", {"kind", "code", "meaning", "action", "source"}),
        ("lab down --name none", {"name", "existed"}),
    ],
)
def test_json_is_one_line_and_all_there_is(
    typed: str, first: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["everstep", *typed.split(), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    assert first <= json.loads(line)[0].keys()
    assert printed.err == ""
    assert not ended.value.code


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("inject gpu-1", "name one fault: --xid CODE, --state NAME or --power; `everstep inject --help` says more"),
        ("inject", "missing argument 'node'; `everstep inject --help` says more"),
        ("faults list --colour", "no such option: --colour; `everstep faults list --help` says more"),
        ("lab dwon", "no such command 'dwon'. Did you mean 'down'? `everstep lab --help` says more"),
        (
            "demo --fault xid:x",
            "'xid:x' is no fault that the demo can cause: use xid:CODE, for example xid:79, or power",
        ),
        ("demo --slurm 1.0", "no image for Slurm 1.0: choose one of 22.05, 24.11, 26.05"),
        ("demo --framework jax", "no example for 'jax': choose one of numpy, torch"),
    ],
)
def test_a_wrong_command_is_one_line(
    typed: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["everstep", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert printed.err.startswith("everstep")
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("faults explain 4711", "no fault has the code '4711'; `everstep faults list` shows all of them"),
        (
            "demo --fault xid:7",
            "XID 7 is not one that the simulated GPUs can show; choose one of "
            "13, 31, 43, 45, 48, 63, 79, 94, 95, 119, 154",
        ),
        ("inject gpu-1 --xid 79 --lab none", "no lab 'none'; `everstep lab up --name none` makes it"),
    ],
)
def test_what_there_is_not_is_one_line(
    typed: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["everstep", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (1, f"everstep: {says}\n")


def test_a_group_without_a_command_shows_its_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["everstep", "faults"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert "explain" in printed.out + printed.err
    assert "everstep: " not in printed.err


def test_the_demo_takes_its_signal_handlers_off_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else runs in the process hears its own signals afterwards."""

    def run_demo(*_: object) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise LabError("the demo ends here")

    handlers = [signal.getsignal(signal.SIGTERM)]
    monkeypatch.setattr("everstep.lab.demo.stage.run_demo", run_demo)
    monkeypatch.setattr("sys.argv", ["everstep", "demo", "--report", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "the demo ends here" in capsys.readouterr().err
    before, during = handlers
    assert during is not before
    assert signal.getsignal(signal.SIGTERM) is before
