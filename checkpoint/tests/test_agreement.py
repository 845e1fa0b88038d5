"""The second claim: all ranks stop at the same step, whichever of them was told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep_checkpoint.agreement import Leader, Member

TRIALS = int(os.environ.get("EVERSTEP_FUZZ_TRIALS", "20"))


@pytest.mark.timeout(300 + TRIALS)
@pytest.mark.parametrize(("trials", "how"), [(TRIALS, "tcp"), (3, "files")])
def test_four_processes_stop_at_one_step(tmp_path: Path, trials: int, how: str) -> None:
    argv = [sys.executable, str(PROGRAMS / "agree.py")]
    # Files, not pipes: a rank whose pipe is full would hold up the others.
    outputs = [tmp_path / f"rank-{rank}.jsonl" for rank in range(4)]
    ranks = []
    for rank, output in enumerate(outputs):
        with output.open("w") as file:
            ranks.append(subprocess.Popen([*argv, str(rank), "4", str(trials), str(tmp_path), how], stdout=file))
    assert [process.wait(timeout=100 + trials) for process in ranks] == [0, 0, 0, 0]
    rows = [[json.loads(line) for line in output.read_text().splitlines()] for output in outputs]
    for trial in zip(*rows, strict=True):
        assert {row["verdict"] for row in trial} == {"stop"}
        assert len({row["step"] for row in trial}) == 1, trial
    assert len(rows[0]) == trials


class Walk:
    """All ranks in one process: each message and each step happens in the order that hypothesis draws."""

    def __init__(self, size: int) -> None:
        self.notes: list[tuple[str, dict]] = []
        self.leader = Leader(size, 20.0, lambda event, **fields: self.notes.append((event, fields)))
        self.members = [Member() for _ in range(size)]
        self.steps = [0] * size
        self.stopped: dict[int, int] = {}
        self.up: list[list[dict]] = [[] for _ in range(size)]
        self.down: list[list[dict]] = [[] for _ in range(size)]

    def step(self, rank: int) -> None:
        """The main thread of `rank` tries to pass its next boundary, by the rule of Team.boundary."""
        member, at = self.members[rank], self.steps[rank]
        if member.frozen is not None or rank in self.stopped:
            return
        if member.stop is not None and member.stop["step"] <= at:
            assert member.stop["step"] == at, "a rank is past the step that was agreed on"
            self.stopped[rank] = at
            return
        member.passed = at
        self.steps[rank] += 1

    def announce(self, messages: list[dict]) -> None:
        for inbox in self.down:
            inbox.extend(messages)

    def ask(self, rank: int) -> None:
        self.up[rank].append({"t": "stop", "signal": "SIGTERM", "asked_at": 0.0})

    def upward(self, rank: int) -> None:
        if self.up[rank]:
            self.announce(self.leader.handle(rank, self.up[rank].pop(0), 0.0))

    def downward(self, rank: int) -> None:
        if self.down[rank]:
            answer = self.members[rank].handle(self.down[rank].pop(0))
            if answer is not None:
                self.up[rank].append(answer)


@settings(deadline=None)  # the machine may be busy
@given(st.data(), st.integers(1, 5))
def test_any_order_of_messages_agrees(data: st.DataObject, size: int) -> None:
    walk = Walk(size)
    what = st.sampled_from(["step", "step", "up", "down", "ask", "save"])
    for kind, rank in data.draw(st.lists(st.tuples(what, st.integers(0, size - 1)), max_size=120)):
        match kind:
            case "step":
                walk.step(rank)
            case "up":
                walk.upward(rank)
            case "down":
                walk.downward(rank)
            case "ask":
                walk.ask(rank)
            case "save":
                walk.announce(walk.leader.ask_save(0.0))
    walk.ask(0)
    for _ in range(400):  # now let everything be delivered
        for rank in range(size):
            walk.upward(rank)
            walk.downward(rank)
            walk.step(rank)
    assert set(walk.stopped) == set(range(size)), "a rank never stopped"
    assert len(set(walk.stopped.values())) == 1
    stops = [fields for event, fields in walk.notes if event == "stop"]
    assert [fields["agreed_step"] for fields in stops] == [walk.stopped[0]], "one stop, told truly"


def test_silence_of_one_rank_abandons_the_stop() -> None:
    walk = Walk(3)
    walk.ask(1)
    walk.upward(1)
    for rank in (0, 1):
        walk.downward(rank)
        walk.upward(rank)
    assert walk.leader.tick(4.9) == []
    (abandon,) = walk.leader.tick(5.0)
    assert (abandon["t"], abandon["kind"], abandon["why"]) == ("abandon", "stop", "rank 2 never answered in time")
    assert walk.notes == [("stop", {"signal": "SIGTERM", "asked_at": 0.0, "agreed_step": None, "why": abandon["why"]})]


def test_a_lost_rank_ends_every_wait_at_once() -> None:
    walk = Walk(2)
    walk.leader.handle(0, {"t": "arrived", "step": 7}, 0.0)
    (settled,) = walk.leader.lost(1, "its connection broke", 1.0)
    assert settled == {
        "t": "settled",
        "step": 7,
        "ok": False,
        "error": "rank 1 gone: its connection broke",
        "skipped": False,
    }
    messages = walk.leader.ask_stop(2.0, "SIGTERM", 0.0)
    assert [message["t"] for message in messages] == ["freeze", "abandon"]
