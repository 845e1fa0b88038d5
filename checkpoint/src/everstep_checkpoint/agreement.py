"""How the ranks agree on one step, as two pure state machines: a Member on every rank, a Leader on rank 0.

The rule is the one JAX uses: freeze every rank's step boundary for a moment, ask each which step it is in, and take the
highest plus one. Nobody has passed that boundary yet, and everybody will reach it. No collective of the training is
involved, and a step that is not being agreed on costs nothing.

Messages: members say  stop, at, here, arrived, written, unwritten, bye;  the leader says  resume, freeze, go, abandon,
write, settled. A rank whose connection is gone for too long is left out until it is back; what was said meanwhile
reaches it then. No I/O, no clock: `now` (monotonic seconds) comes in, messages go out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Note = Callable[..., None]


class Member:
    """One rank's view. The main thread reads it at each boundary; the background thread feeds it messages."""

    def __init__(self) -> None:
        self.passed = -1  # the highest boundary passed: the number of completed steps when the present step began
        self.polls = 0  # poll points passed since then, inside the step
        self.frozen: int | None = None  # number of the round that holds the boundary
        self.resume: Message | None = None
        self.stop: Message | None = None  # the agreed stop: {"step", "signal", "asked_at"}
        self.save_at: int | None = None
        self.abandoned: str | None = None  # why the stop will end without a new checkpoint
        self.alone: str | None = None  # why rank 0 cannot be reached any more
        self.may_write: set[int] = set()
        self.settled: dict[int, Message] = {}

    def handle(self, message: Message) -> Message | None:
        """Take one message of the leader; returns the answer, if one is due."""
        match message["t"]:
            case "resume":
                self.resume = message
                self.passed = max(self.passed, int(message.get("step") or 0) - 1)
            case "freeze":
                self.frozen = message["round"]
                return {"t": "at", "round": message["round"], "step": self.passed, "polls": self.polls}
            case "go":
                self.frozen = None
                if message["step"] <= self.passed:
                    return self._too_late(message)
                if message["kind"] == "stop":
                    self.stop = message
                else:
                    self.save_at = message["step"]
            case "abandon":
                self.frozen = None
                if message["kind"] == "stop":
                    self.abandoned = message["why"]
            case "write":
                self.may_write.add(message["step"])
            case "settled":
                self.settled[message["step"]] = message
        return None

    def _too_late(self, go: Message) -> Message:
        """It was agreed on while this rank could not be reached, and went on: there is no such step for it any more."""
        why = "it had passed the agreed step before it heard of it"
        if go["kind"] == "stop":
            self.abandoned = self.abandoned or why
        return {"t": "unwritten", "step": go["step"], "error": why}

    @property
    def cut(self) -> bool:
        """Whether the loops inside the present step end here: all ranks come to this poll point, then to the stop."""
        if self.stop is None or self.stop["step"] != self.passed + 1:
            return False
        return self.polls >= int(self.stop["polls"])

    @property
    def hopeless(self) -> str | None:
        """Why the stop will end without a checkpoint of its own step, once that is known."""
        settled = self.settled.get(self.stop["step"]) if self.stop is not None else None
        failed = str(settled["error"]) if settled is not None and not settled["ok"] else None
        return self.abandoned or failed

    def forget_before(self, step: int) -> None:
        """Drop what was said about checkpoints before `step`."""
        self.may_write = {known for known in self.may_write if known >= step}
        self.settled = {known: message for known, message in self.settled.items() if known >= step}

    def leader_lost(self, why: str, stopping: bool) -> None:
        """Rank 0 is gone: nothing can be agreed on, unless it comes back."""
        self.alone = self.alone or why
        self.frozen = None
        if stopping or self.stop is not None:
            self.abandoned = self.abandoned or why

    def leader_back(self) -> None:
        """Rank 0 can be reached again; what was given up meanwhile stays given up."""
        self.alone = None


@dataclass(slots=True)
class Round:
    """One freeze in progress."""

    number: int
    kind: str
    deadline: float
    about: Message = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank -> (boundary passed, polls since)


@dataclass(slots=True)
class Commit:
    """One checkpoint in progress: who is there, and what each rank wrote."""

    deadline: float
    here: set[int] = field(default_factory=set)  # ranks that stand at the step, and begin to copy their state
    arrived: set[int] = field(default_factory=set)  # ranks that have copied it, and are ready to write
    needs: float = 0.0  # seconds that the slowest rank expects to write, with margin; 0 when nobody knows yet
    stall: float = 0.0  # seconds that the slowest rank's training was held
    writing: bool = False
    publishing: bool = False
    reports: dict[int, Message] = field(default_factory=dict)
    failed: str | None = None


class Leader:
    """Rank 0's view of all ranks. Every method returns the messages to send to all ranks, its own included.

    `grace` is what lies between a stop's signal and the kill, in seconds. A quarter of it bounds every wait for a
    peer's answer; three quarters are what the slowest rank may take to reach the agreed step. `save_patience` is the
    same for a periodic save.
    """

    save_patience = 600.0

    def __init__(self, size: int, grace: float, note: Note) -> None:
        self.size = size
        self.plan_with(grace)
        self.gone: dict[int, str] = {}
        self.round: Round | None = None
        self.commits: dict[int, Commit] = {}
        self.stop: Message | None = None  # agreed
        self.sticky: list[Message] = []  # what a rank that joins late must still hear
        self._note = note
        self._rounds = 0
        self._asked: Message | None = None  # a stop that waits for its round
        self.asked_since = 0.0  # monotonic seconds, once a stop was asked for
        self._finished = False  # the stop was agreed on or abandoned: later requests say nothing new

    def plan_with(self, grace: float) -> None:
        """Seconds from a stop's signal to the kill."""
        self.grace, self.patience, self.stop_budget = grace, grace / 4, grace * 3 / 4

    def announce_resume(self, message: Message) -> list[Message]:
        return self._stick(message)

    def ask_save(self, now: float) -> list[Message]:
        """The interval is over: find a common step for a periodic save. Nothing happens while a stop is under way."""
        if self.round is not None or self._asked is not None or self._finished:
            return []
        if self.gone:
            self._note("save", phase="skipped", step=None, why=self._gone_text())
            return []
        return self._begin("save", now, {})

    def ask_stop(self, now: float, signal: str, asked_at: float) -> list[Message]:
        """A rank was told to stop. The first request counts."""
        if self._asked is not None or self._finished:
            return []
        self._asked, self.asked_since = {"signal": signal, "asked_at": asked_at}, now
        return self._next_stop(now)

    def handle(self, rank: int, message: Message, now: float) -> list[Message]:
        """Take one message of a rank."""
        match message["t"]:
            case "stop":
                return self.ask_stop(now, message["signal"], message["asked_at"])
            case "at":
                if self.round is not None and message["round"] == self.round.number:
                    self.round.steps[rank] = (message["step"], message.get("polls", 0))
                    return self._decide(now)
            case "here":
                self._here(rank, int(message["step"]), now)
            case "arrived":
                return self._arrived(rank, message, now)
            case "written":
                commit = self.commits.get(message["step"])
                if commit is not None:
                    commit.reports[rank] = message
            case "unwritten":
                return self._unwritten(rank, message, now)
        return []

    def lost(self, rank: int, why: str, now: float) -> list[Message]:
        """A rank's connection ended, or it said goodbye."""
        if rank in self.gone:
            return []
        self.gone[rank] = why
        return self.tick(now)

    def returned(self, rank: int) -> None:
        """Its connection is there again. What was given up without it stays given up; the next save counts on it."""
        self.gone.pop(rank, None)

    def tick(self, now: float) -> list[Message]:
        """Let deadlines and losses take effect."""
        out: list[Message] = []
        if self.round is not None and (self.gone or now >= self.round.deadline):
            out += self._abandon(self._missing(set(self.round.steps), "answered"), now)
        for step, commit in self.commits.items():
            if commit.failed is None and not commit.writing and (self.gone or now >= commit.deadline):
                out += self._fail(step, commit, self._late(step, commit))
        if self.stop is not None and self.gone and self.stop["step"] not in self.commits:
            step = self.stop["step"]
            commit = self.commits[step] = Commit(now)
            out += self._fail(step, commit, self._gone_text())
        return out

    def _next_stop(self, now: float) -> list[Message]:
        if self._asked is None or self.round is not None:
            return []
        asked, self._asked = self._asked, None
        self._finished = True
        out = self._begin("stop", now, asked)
        return out + self._abandon(self._gone_text(), now) if self.gone else out

    def _begin(self, kind: str, now: float, about: Message) -> list[Message]:
        self._rounds += 1
        self.round = Round(self._rounds, kind, now + self.patience, about)
        return self._stick({"t": "freeze", "round": self._rounds})

    def _decide(self, now: float) -> list[Message]:
        assert self.round is not None
        if len(self.round.steps) < self.size:
            return []
        done, self.round = self.round, None
        passed, polls = max(done.steps.values())
        step = passed + 1
        go = {"t": "go", "round": done.number, "kind": done.kind, "step": step, "polls": polls + 1, **done.about}
        out = self._stick(go)
        if done.kind == "stop":
            self.stop = out[0]
            self._note("stop", **done.about, agreed_step=step)
            for commit in self.commits.values():
                commit.deadline = min(commit.deadline, self._stop_limit())
        return out + self._next_stop(now)

    def _abandon(self, why: str, now: float) -> list[Message]:
        assert self.round is not None
        done, self.round = self.round, None
        if done.kind == "stop":
            self._note("stop", **done.about, agreed_step=None, why=why)
        else:
            self._note("save", phase="skipped", step=None, why=why)
        out = self._stick({"t": "abandon", "round": done.number, "kind": done.kind, "why": why})
        if done.kind == "stop":
            for step, commit in self.commits.items():
                if commit.failed is None and not commit.writing:
                    out += self._fail(step, commit, why)
        return out + self._next_stop(now)

    def time_left(self, now: float) -> float:
        """Seconds to the kill, once a stop was asked for; infinite before."""
        return self.asked_since + self.grace - now if self.asked_since else math.inf

    def give_up(self, step: int, why: str) -> list[Message]:
        """Abandon the checkpoint of `step` for one that matters more, unless it is just being published."""
        commit = self.commits.get(step)
        if commit is None or commit.failed is not None or commit.publishing:
            return []
        return self._fail(step, commit, why)

    def _here(self, rank: int, step: int, now: float) -> Commit:
        """A rank has reached the step. Once all have, the rest of the grace is for copying and writing."""
        commit = self.commits.get(step)
        if commit is None:
            stopping = self.stop is not None and self.stop["step"] == step
            self.commits = {known: other for known, other in self.commits.items() if known > step}
            commit = self.commits[step] = Commit(self._stop_limit() if stopping else now + self.save_patience)
        commit.here.add(rank)
        if len(commit.here) == self.size:
            commit.deadline = max(commit.deadline, self.asked_since + self.grace if self.asked_since else 0.0)
        return commit

    def _arrived(self, rank: int, message: Message, now: float) -> list[Message]:
        step = int(message["step"])
        commit = self._here(rank, step, now)
        commit.arrived.add(rank)
        commit.needs = max(commit.needs, float(message.get("needs", 0.0)))
        commit.stall = max(commit.stall, float(message.get("stall", 0.0)))
        if commit.failed is not None:
            return []
        if len(commit.arrived) == self.size:
            if (left := self.time_left(now)) < commit.needs:
                why = f"it would take up to {commit.needs:.1f} s and {max(left, 0.0):.1f} s are left before the kill"
                return self._fail(step, commit, why, skipped=True)
            commit.writing = True
            return [{"t": "write", "step": step}]
        return self.tick(now)

    def _unwritten(self, rank: int, message: Message, now: float) -> list[Message]:
        """A rank has nothing to show for the step: the others need not wait for it."""
        step = int(message["step"])
        commit = self.commits.get(step) or self._here(rank, step, now)
        commit.reports[rank] = message
        if commit.writing or commit.failed is not None:
            return []  # who collects the reports sees it
        return self._fail(step, commit, f"{_ranks([rank])}: {message['error']}")

    def _stop_limit(self) -> float:
        return self.asked_since + max(self.patience, self.stop_budget)

    def _fail(self, step: int, commit: Commit, why: str, skipped: bool = False) -> list[Message]:
        commit.failed = why
        return [{"t": "settled", "step": step, "ok": False, "error": why, "skipped": skipped}]

    def _late(self, step: int, commit: Commit) -> str:
        if len(commit.here) < self.size:
            return self._missing(commit.here, f"reached step {step}")
        return self._missing(commit.arrived, f"copied the state of step {step}")

    def _missing(self, present: set[int], verb: str) -> str:
        if self.gone:
            return self._gone_text()
        ranks = [rank for rank in range(self.size) if rank not in present]
        return f"{_ranks(ranks)} never {verb} in time"

    def _gone_text(self) -> str:
        return f"{_ranks(sorted(self.gone))} gone: {next(iter(self.gone.values()), '')}"

    def _stick(self, message: Message) -> list[Message]:
        """Remember the newest resume and round for ranks that have not joined yet."""
        kinds = {"freeze", "go", "abandon"} if message["t"] != "resume" else {"resume"}
        if message["t"] == "freeze":
            # A stop that was agreed on before stays known; a finished save round is of no use to a newcomer.
            self.sticky = [m for m in self.sticky if m["t"] == "resume" or m.get("kind") == "stop"]
        else:
            self.sticky = [m for m in self.sticky if m["t"] not in kinds]
        self.sticky.append(message)
        return [message]


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
