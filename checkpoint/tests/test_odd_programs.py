"""What programs do that nobody planned for: odd values, odd states, odd ways out."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_ranks import records, until

import everstep_checkpoint.vault as vault_module
from everstep_checkpoint import Every, Run, StateMismatchError, World, arrays, attach, verify
from everstep_checkpoint.durable import shared_secret
from everstep_checkpoint.record import Record, record_file
from everstep_checkpoint.team import Team
from everstep_checkpoint.wire import Hello, join, own_addresses


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)


# ---- states ----------------------------------------------------------------------------------------------------------


def odd_arrays() -> dict[Any, Any]:
    bits = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0123))[0]  # a signalling NaN with a payload
    return {
        "numbers": np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, bits]),
        "every third": np.arange(100_000.0)[::3],
        "backwards": np.arange(10.0)[::-1],
        "by columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "no axis": np.array(3.5),
        "nothing": np.zeros(0),
        "no rows": np.zeros((0, 3)),
        "objects": np.array([{"a": 1}, [1, 2], None], dtype=object),
        "days": np.array(["2020-01-01", "NaT"], dtype="M8[s]"),
        "records": np.array([(1, -0.0)], dtype=[("x", "i4"), ("y", "f8")]),
        "big-endian": np.arange(5, dtype=">f8"),
        "half": np.array([5.9604645e-08], dtype="f2"),
        7: np.ones(2),
        ("a", 2): np.ones(2),
    }


def test_arrays_of_every_kind_come_back_to_the_bit(tmp_path: Path) -> None:
    held = odd_arrays()
    before = {name: (value.tobytes(), value.dtype) for name, value in held.items() if name != "objects"}
    with Run(tmp_path, state={"odd": arrays(held)}, every=Every(steps=1)) as run:
        list(run.steps(2))
    fresh = {name: np.empty_like(value) for name, value in held.items()}
    with Run(tmp_path, state={"odd": arrays(fresh)}) as run:
        assert run.resumed_from == 2
    assert {name: (value.tobytes(), value.dtype) for name, value in fresh.items() if name != "objects"} == before
    assert list(fresh["objects"]) == [{"a": 1}, [1, 2], None]
    del fresh[7]
    with pytest.raises(StateMismatchError, match="arrays"), Run(tmp_path, state={"odd": arrays(fresh)}):
        pass


def read_only() -> Any:
    value = np.zeros(3)
    value.setflags(write=False)
    return value


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), [1.0], "x", read_only()], ids=lambda v: type(v).__name__)
def test_what_could_not_be_restored_is_refused_before_the_training(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be restored in place"):
        arrays({"w": value})


def test_a_number_that_replaces_an_array_is_found_when_it_is_saved(tmp_path: Path) -> None:
    held: dict[str, Any] = {"w": np.zeros(2)}

    def train() -> None:
        with Run(tmp_path, state={"a": arrays(held)}, every=Every(steps=1)) as run:
            for _ in run.steps(5):
                held["w"] = held["w"].sum()

    with pytest.raises(TypeError, match="cannot be restored in place"):
        train()
    assert not list(tmp_path.glob("step_*"))


def test_a_class_that_the_program_no_longer_has(tmp_path: Path) -> None:
    module = types.ModuleType("gone")
    exec("class Thing: pass", module.__dict__)
    sys.modules["gone"] = module
    with Run(tmp_path, state={"x": (module.Thing, lambda saved: None)}) as run:
        list(run.steps(1))
    del sys.modules["gone"]
    with (
        pytest.raises(StateMismatchError, match="'gone'"),
        Run(tmp_path, state={"x": (lambda: 1, lambda saved: None)}),
    ):
        pass
    assert verify(tmp_path / "step_00000001").step == 1, "it is the program that has changed"


# ---- values ----------------------------------------------------------------------------------------------------------


def test_whole_numbers_of_numpy_are_steps(tmp_path: Path) -> None:
    with attach(tmp_path, every=Every(steps=2)) as run:
        for step in np.arange(1, 5):
            run.report(step, loss=np.float32(0.5))
            if run.should_save(step):
                (run.begin(step) / "x").touch()
                assert run.commit(step)
            assert not run.should_stop(step)
    events = records(tmp_path)[0]
    assert [event["step"] for event in events if event.get("phase") == "committed"] == [2, 4]
    assert (events[-1]["event"], events[-1]["step"]) == ("end", 4)


def test_an_event_that_json_cannot_carry_does_not_end_the_record(tmp_path: Path) -> None:
    with Run(tmp_path, state={}) as run:
        with run.section(Path("evaluation"), limit=float("inf")):  # type: ignore[arg-type]
            pass
        list(run.steps(2))
    events = records(tmp_path)[0]
    assert [(event["name"], event.get("limit")) for event in events if event["event"] == "section"] == [
        ("evaluation", None)
    ] * 2
    assert events[-1]["event"] == "end"
    assert "Infinity" not in (tmp_path / "records/attempt-0000.jsonl").read_text()


@pytest.mark.parametrize("how", [{"grace": float("nan")}, {"grace": float("inf")}, {"keep": float("nan")}])
def test_numbers_that_are_none(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Run(tmp_path, state={}, **how)
    with pytest.raises(ValueError, match="must be"):
        Every(seconds=float("nan"))


# ---- ways through and out --------------------------------------------------------------------------------------------


def test_a_second_loop_saves_between_its_steps_too(tmp_path: Path) -> None:
    done = {"steps": 0}
    state = {"done": (lambda: dict(done), done.update)}
    with Run(tmp_path, state=state, keep=5) as run:
        for _ in run.steps(3):
            done["steps"] += 1
        for step in run.steps(6):
            done["steps"] += 1
            if step == 4:
                run.save("at the end of a step")
    for path in tmp_path.glob("step_*"):
        found = verify(path)
        captured, _ = vault_module.Vault(tmp_path, "x").read_rank(found, 0)
        assert captured["entries"]["done"] == {"steps": found.step}
    assert (run.saved_step, run.outcome) == (6, "finished")


@pytest.mark.parametrize(("code", "outcome"), [(None, "finished"), (0, "finished"), (3, "failed")])
def test_leaving_by_exit_after_the_loop(tmp_path: Path, code: int | None, outcome: str) -> None:
    def train() -> None:
        with Run(tmp_path, state={}) as run:
            list(run.steps(3))
            sys.exit(code)

    with pytest.raises(SystemExit):
        train()
    assert records(tmp_path)[0][-1]["outcome"] == outcome


def test_leaving_by_exit_in_the_loop_is_no_end(tmp_path: Path) -> None:
    def train() -> None:
        with Run(tmp_path, state={}) as run:
            for _ in run.steps(3):
                sys.exit(0)

    with pytest.raises(SystemExit):
        train()
    assert records(tmp_path)[0][-1]["outcome"] == "failed"


def test_a_pin_that_cannot_be_set_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*how: Any) -> None:
        raise OSError(28, "No space left on device")

    with Run(tmp_path, state={}) as run:
        for step in run.steps(4):
            if step == 1:
                run.save("dear", pin=True)
                monkeypatch.setattr(vault_module.Vault, "pin", full)
    assert (run.outcome, run.saved_step) == ("finished", 4)
    assert [event["step"] for event in records(tmp_path)[0] if event.get("phase") == "unpinned"] == [2]


# ---- the record ------------------------------------------------------------------------------------------------------


def test_attempts_that_begin_at_one_moment_have_a_record_each(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def begin(_: int) -> Path:
        together.wait()
        return record_file({}, tmp_path, None)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(begin, range(8)))) == 8


def test_a_line_that_the_disk_took_half_of_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "attempt-0000.jsonl", os.write
    record = Record(path)
    record.event("one")
    until(path.exists, "the file is there")
    full: list[int] = []

    def write(fd: int, data: Any) -> int:
        if b'"two"' not in bytes(data):
            return real(fd, data)
        full.append(real(fd, bytes(data)[:9]) if not full else 0)
        if len(full) > 1:
            raise OSError(28, "No space left on device")
        return full[0]

    monkeypatch.setattr(os, "write", write)
    record.event("two")
    until(lambda: len(full) > 1, "the disk is full")
    record.event("three")
    record.close()
    first, torn, last = path.read_text().splitlines()
    assert (json.loads(first)["event"], len(torn), json.loads(last)["event"]) == ("one", 9, "three")


@pytest.mark.timeout(20)
def test_a_pipe_in_the_records_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempt-0000.jsonl")
    record = Record(tmp_path / "attempt-0000.jsonl")
    record.event("start")
    record.close()
    assert not record._thread.is_alive()


# ---- the other ranks -------------------------------------------------------------------------------------------------

STRANGE = [
    b'{"rank":1e999,"session":"x","heard":0}', b"[" * 900_000, b'{"rank":NaN}', b'{"rank":1,"heard":1e999}', b"[]",
    b'{"rank":"1","session":"x","heard":0,"proof":"\xc3\xa9"}', b'{"rank":' + b"9" * 5000 + b"}", b"\xff\xff", b"",
]  # fmt: skip


@pytest.fixture
def rank0(tmp_path: Path) -> Any:
    (tmp_path / "own").mkdir()
    team = Team(World(0, 2, "127.0.0.1", 0, "launch"), tmp_path / "own", 20.0, lambda event, **fields: None)
    team.start(10)
    yield team
    team.close(ok=True, why="", together=False)


def port_of(team: Team) -> int:
    assert team._hub is not None
    return int(team._hub._server.getsockname()[1])


def test_nothing_that_a_stranger_says_ends_the_side_channel(tmp_path: Path, rank0: Team) -> None:
    for said in STRANGE:
        with socket.create_connection(("127.0.0.1", port_of(rank0)), timeout=10) as stranger:
            stranger.recv(4096)
            stranger.sendall(struct.pack(">I", len(said)) + said)
            stranger.shutdown(socket.SHUT_WR)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert not rank0._broken
    secret = shared_secret(tmp_path / "own" / "key")
    link, _ = join(("127.0.0.1", port_of(rank0)), Hello(1, "launch", "session"), secret, 10)
    link.close()


def test_a_rank_of_an_older_rank_0_does_not_take_the_place_of_the_new_one(tmp_path: Path, rank0: Team) -> None:
    """A launcher that names all its launches alike, as plain RANK and WORLD_SIZE do, and a rank that outlived one."""
    secret = shared_secret(tmp_path / "own" / "key")
    for _ in range(2):
        with pytest.raises(OSError, match=r"closed|reset"):
            join(("127.0.0.1", port_of(rank0)), Hello(1, "launch", "old", heard=3), secret, 10)
    link, _ = join(("127.0.0.1", port_of(rank0)), Hello(1, "launch", "new"), secret, 10)
    link.close()


def test_a_host_with_ipv6_is_reached_by_it(tmp_path: Path, rank0: Team) -> None:
    if "::1" not in own_addresses():
        pytest.skip("this host has no IPv6, not even to itself")
    secret = shared_secret(tmp_path / "own" / "key")
    link, _ = join(("::1", port_of(rank0)), Hello(1, "launch", "session"), secret, 10)
    link.close()
    assert own_addresses()[0] != "::1"


def test_variables_that_mean_nothing_are_told_by_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_KILL_WAIT", "soon")
    with pytest.raises(ValueError, match="EVERSTEP_KILL_WAIT is 'soon'"), Run(tmp_path, state={}, world=World(1, 2)):
        pass
