"""How the ranks agree on one step, as two pure state machines: a Member on every rank, a Leader on rank 0.

The rule is the one JAX uses: freeze every rank's step boundary for a moment, ask each which step it is in, and take the
highest plus one. Nobody has passed that boundary yet, and everybody will reach it. No collective of the training is
involved, and a step that is not being agreed on costs nothing.

Messages: members say  stop, at, arrived, written, unwritten, bye;  the leader says  resume, freeze, go, abandon, write,
settled. No I/O, no clock: `now` (monotonic seconds) comes in, messages go out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Note = Callable[..., None]


class Member:
    """One rank's view. The main thread reads it at each boundary; the background thread feeds it messages."""

    def __init__(self) -> None:
        self.passed = -1  # the highest boundary passed: the number of completed steps when the present step began
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
                return {"t": "at", "round": message["round"], "step": self.passed}
            case "go":
                self.frozen = None
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

    def forget_before(self, step: int) -> None:
        """Drop what was said about checkpoints before `step`."""
        self.may_write = {known for known in self.may_write if known >= step}
        self.settled = {known: message for known, message in self.settled.items() if known >= step}

    def leader_lost(self, why: str, stopping: bool) -> None:
        """Rank 0 is gone: nothing can be agreed on any more."""
        self.alone = self.alone or why
        self.frozen = None
        if stopping or self.stop is not None:
            self.abandoned = self.abandoned or why


@dataclass(slots=True)
class Round:
    """One freeze in progress."""

    number: int
    kind: str
    deadline: float
    about: Message = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Commit:
    """One checkpoint in progress: who is there, and what each rank wrote."""

    deadline: float
    arrived: set[int] = field(default_factory=set)
    writing: bool = False
    reports: dict[int, Message] = field(default_factory=dict)
    failed: str | None = None


class Leader:
    """Rank 0's view of all ranks. Every method returns the messages to send to all ranks, its own included.

    `patience` (seconds) bounds every wait for a peer's answer. `stop_budget` (seconds) is how long after a stop was
    asked for the slowest rank may take to reach the agreed step; `save_patience` is the same for a periodic save.
    """

    save_patience = 600.0

    def __init__(self, size: int, patience: float, stop_budget: float, note: Note) -> None:
        self.size, self.patience, self.stop_budget = size, patience, stop_budget
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
                    self.round.steps[rank] = message["step"]
                    return self._decide(now)
            case "arrived":
                return self._arrived(rank, message["step"], now)
            case "written" | "unwritten":
                commit = self.commits.get(message["step"])
                if commit is not None:
                    commit.reports[rank] = message
        return []

    def lost(self, rank: int, why: str, now: float) -> list[Message]:
        """A rank's connection ended, or it said goodbye."""
        if rank in self.gone:
            return []
        self.gone[rank] = why
        return self.tick(now)

    def tick(self, now: float) -> list[Message]:
        """Let deadlines and losses take effect."""
        out: list[Message] = []
        if self.round is not None and (self.gone or now >= self.round.deadline):
            out += self._abandon(self._missing(set(self.round.steps), "answered"), now)
        for step, commit in self.commits.items():
            if commit.failed is None and not commit.writing and (self.gone or now >= commit.deadline):
                out += self._fail(step, commit, self._missing(commit.arrived, f"reached step {step}"))
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
        step = max(done.steps.values()) + 1
        out = self._stick({"t": "go", "round": done.number, "kind": done.kind, "step": step, **done.about})
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

    def _arrived(self, rank: int, step: int, now: float) -> list[Message]:
        commit = self.commits.get(step)
        if commit is None:
            stopping = self.stop is not None and self.stop["step"] == step
            self.commits = {known: other for known, other in self.commits.items() if known > step}
            commit = self.commits[step] = Commit(self._stop_limit() if stopping else now + self.save_patience)
        commit.arrived.add(rank)
        if commit.failed is not None:
            return []
        if len(commit.arrived) == self.size:
            commit.writing = True
            return [{"t": "write", "step": step}]
        return self.tick(now)

    def _stop_limit(self) -> float:
        return self.asked_since + max(self.patience, self.stop_budget)

    def _fail(self, step: int, commit: Commit, why: str) -> list[Message]:
        commit.failed = why
        return [{"t": "settled", "step": step, "ok": False, "error": why}]

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
