"""Peers that hang, die or fail: nobody waits for ever, the last checkpoint stays, and the record says so."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS, Launch, records, until

from everstep_checkpoint import World, verify
from everstep_checkpoint.team import Team
from everstep_checkpoint.wire import Hello, join
from everstep_checkpoint.world import detect, side_port

STUBBORN = PROGRAMS / "stubborn.py"


def saved(directory: Path) -> list[int]:
    return [verify(path).step for path in sorted(directory.glob("step_*"))]


def freeze(ranks: Launch, rank: int) -> None:
    ranks.signal(signal.SIGSTOP, rank)
    stat = Path(f"/proc/{ranks.processes[rank].pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands still")


def test_a_peer_that_never_answers(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, program=STUBBORN)
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    freeze(ranks, 1)
    asked = time.monotonic()
    ranks.signal(signal.SIGTERM, 0)
    code = ranks.processes[0].wait(timeout=20)
    assert 0.9 <= time.monotonic() - asked < 4, "it must wait a quarter of the grace of 4 s, and less than all of it"
    record = records(tmp_path)[0]
    (stop,) = [event for event in record if event["event"] == "stop"]
    assert (stop["agreed_step"], stop["why"]) == (None, "rank 1 never answered in time")
    assert record[-1]["saved_step"] == saved(tmp_path)[-1]
    assert record[-1]["why"] == stop["why"]
    assert (code, record[-1]["outcome"]) == (0, "stopped")


def test_a_peer_that_died(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """Killed with a message unread, it looks to its peer as after an outage: away for a while first."""
    ranks = launch(tmp_path, "--away", "0", program=STUBBORN)
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    ranks.signal(signal.SIGKILL, 1)
    ranks.processes[1].wait()
    ranks.signal(signal.SIGTERM, 0)
    asked = time.monotonic()
    assert ranks.processes[0].wait(timeout=20) == 0
    assert time.monotonic() - asked < 4, "longer than the grace"
    end = records(tmp_path)[0][-1]
    assert end["saved_step"] == saved(tmp_path)[-1]
    assert end["why"].startswith("rank 1 gone")


def test_rank_0_died(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, program=STUBBORN)
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    ranks.signal(signal.SIGKILL, 0)
    ranks.processes[0].wait()
    ranks.signal(signal.SIGTERM, 1)
    assert ranks.processes[1].wait(timeout=10) == 0
    assert saved(tmp_path)[-1] % 5 == 0


def test_rank_0_never_answers(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, program=STUBBORN)
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    freeze(ranks, 0)
    asked = time.monotonic()
    ranks.signal(signal.SIGTERM, 1)
    assert ranks.processes[1].wait(timeout=20) == 0
    assert time.monotonic() - asked < 6, "much longer than the grace"


def test_stuck_in_a_step_with_a_dead_peer(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """The main thread never comes back: the process is ended, so that its node is free for the next attempt."""
    ranks = launch(tmp_path, "--stuck-rank", "0", program=STUBBORN)
    until((tmp_path / "stuck").exists, "rank 0 is stuck")
    until((tmp_path / "step_00000005").is_dir, "the checkpoint before that is there")
    ranks.signal(signal.SIGKILL, 1)
    ranks.processes[1].wait()
    ranks.signal(signal.SIGTERM, 0)
    assert ranks.processes[0].wait(timeout=10) == 75
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("failed", 5)
    assert "did not come back from its step" in end["why"]


def test_the_last_snapshot_is_saved_by_ranks_that_are_stuck(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """Rank 0 never comes back from its step, but what was copied before is written, and has its own step's name."""
    ranks = launch(tmp_path, "--stuck-rank", "0", "--slow-disk", "3", "--grace", "20", program=STUBBORN)
    until((tmp_path / "stuck").exists, "rank 0 is stuck")
    until(lambda: list(tmp_path.glob(".tmp-*/rank-0001.json")), "rank 1 has written its part")
    assert saved(tmp_path) == [], "and rank 0 has not"
    ranks.signal(signal.SIGTERM, 0)
    time.sleep(0.3)
    ranks.signal(signal.SIGKILL, 1)
    assert ranks.processes[0].wait(timeout=20) == 75
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"], saved(tmp_path)) == ("failed", 5, [5])


def test_one_rank_slower_than_the_grace_allows(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """It answers, but never reaches the agreed step: the others leave without a checkpoint before they are killed."""
    ranks = launch(tmp_path, "--stuck-rank", "1", program=STUBBORN)
    until((tmp_path / "stuck").exists, "rank 1 is stuck")
    ranks.signal(signal.SIGTERM, 0)
    asked = time.monotonic()
    assert ranks.processes[0].wait(timeout=20) == 0
    assert time.monotonic() - asked < 4, "longer than the grace"
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("stopped", 5)


def test_a_peer_that_fails_is_named(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, "--fail-rank", "1", program=STUBBORN)
    assert ranks.processes[1].wait(timeout=20) == 1
    until(lambda: [e for e in records(tmp_path)[0] if e.get("phase") == "failed"], "a save could not be made")
    ranks.signal(signal.SIGTERM, 0)
    assert ranks.processes[0].wait(timeout=10) == 0
    assert "it failed: RuntimeError: out of memory" in records(tmp_path)[0][-1]["why"]


def test_a_stranger_on_the_port_and_a_port_in_use(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """Something else listens on the derived port: rank 0 takes another, and the others find it all the same."""
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "45454"}
    port = detect(env).port
    with socket.create_server(("127.0.0.1", port)):
        ranks = launch(tmp_path, program=STUBBORN, MASTER_PORT="45454")
        until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there", timeout=40)
        ranks.signal(signal.SIGTERM, 1)
        assert ranks.wait() == [0, 0]
    assert records(tmp_path)[0][-1]["outcome"] == "stopped"


@pytest.mark.parametrize(
    ("rank", "token", "secret", "welcome"),
    [
        (1, "this launch", None, True),
        (1, "this launch", b"guessed", False),
        (1, "an older launch", None, False),
        (2, "this launch", None, False),
        (0, "this launch", None, False),
    ],
    ids=["a rank", "no secret", "an older attempt", "no such rank", "a second rank 0"],
)
def test_who_may_join(tmp_path: Path, rank: int, token: str, secret: bytes | None, welcome: bool) -> None:
    port = side_port(str(tmp_path))
    own = tmp_path / ".everstep"
    own.mkdir()
    team = Team(World(0, 2, "127.0.0.1", port, "this launch"), own, 20.0, lambda event, **fields: None)
    team.start(5.0)
    try:
        key = secret or (own / "key").read_bytes()
        assert (own / "key").stat().st_mode & 0o777 == 0o600
        if welcome:
            join(("127.0.0.1", port), Hello(rank, token, "a process"), key, 5.0)[0].close()
        else:
            with pytest.raises(ConnectionRefusedError):
                join(("127.0.0.1", port), Hello(rank, token, "a process"), key, 5.0)
    finally:
        team.close(ok=True, why="", together=False)
