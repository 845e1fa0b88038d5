"""The ranks as one team: a background thread that carries the agreement, and the few calls the main thread makes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .agreement import Leader, Member, Message, Note
from .durable import shared_secret
from .errors import RendezvousError
from .links import Hub, Spoke
from .signals import StopSignals
from .world import World

log = logging.getLogger("everstep_checkpoint")

_TICK = 0.2  # seconds between looks at deadlines
_LINGER = 5.0  # seconds that a main thread gets to come back after its stop was abandoned
WRITE_LIMIT = 3600.0  # seconds after which a periodic save that some rank never finishes writing is given up
EXIT_STUCK = 75  # EX_TEMPFAIL of sysexits.h: try again


class Team:
    """One per Run. All state lives under `changed`; the main thread waits on it, the background thread notifies."""

    def __init__(self, world: World, own: Path, grace: float, note: Note) -> None:
        self.world, self.grace = world, grace
        self.patience = grace / 4
        self.member = Member()
        self.leader = Leader(world.size, grace, note) if world.rank == 0 else None
        self.signals = StopSignals()
        self.signal: str | None = None  # the first stop signal that this rank got
        self.changed = threading.Condition()
        self.save_period: float | None = None  # seconds between periodic saves; read on rank 0 only
        self.on_stuck: Callable[[str], None] = lambda why: None
        self.on_tick: Callable[[float], None] = lambda now: None  # a few times a second, from the background thread
        self._own = own
        self._note = note
        self._last_save = time.monotonic()
        self._closing = False
        self._broken = False  # the background thread is no more
        self._stop_known_at = math.inf  # monotonic seconds
        self._saving = False  # a checkpoint is being made: by the writer's thread, or the main thread waits for it
        self._main_left = False  # the main thread has come to where the stop ends its loop
        self._hopeless_at: float | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._hub: Hub | None = None
        self._spoke: Spoke | None = None
        self._thread = threading.Thread(target=self._loop, name="everstep-team", daemon=True)

    # ---- the main thread's side ------------------------------------------------------------------------------------

    def start(self, timeout: float) -> None:
        """Take the signals over, find the other ranks, start the thread.

        Rank 0 does not wait for the others; they wait for rank 0. Raises RendezvousError after `timeout` seconds.
        """
        self.signals.install()
        try:
            if self.world.size > 1:
                secret = shared_secret(self._own / "key")
                if self.leader is not None:
                    self._hub = Hub(self.world, self._own, secret, self._selector)
                else:
                    self._spoke = Spoke.join(self.world, self._own, secret, timeout, self._asked_to_stop)
                    self._spoke.register(self._selector)
        except BaseException:
            self.signals.restore(stopped=False)
            raise
        self._selector.register(self.signals.fileno(), selectors.EVENT_READ, self._signalled)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._thread.start()

    def plan_with(self, grace: float) -> None:
        """Less than was asked for is granted: `grace` seconds, equal on all ranks."""
        with self.changed:
            self.grace, self.patience = grace, grace / 4
            if self.leader is not None:
                self.leader.plan_with(grace)

    def announce_resume(self, message: Message) -> None:
        """Rank 0 tells everybody where to begin."""
        assert self.leader is not None
        with self.changed:
            self._announce(self.leader.announce_resume({"t": "resume", **message}))

    def wait_resume(self, timeout: float) -> Message:
        """What rank 0 decided. Raises RendezvousError when it does not come within `timeout` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self.member.resume or self.member.alone, timeout)
            if self.member.resume is None:
                why = self.member.alone or f"rank 0 did not choose a checkpoint within {timeout:g} s"
                raise RendezvousError(f"rank {self.world.rank}: {why}")
            return self.member.resume

    def boundary(self, completed: int) -> str:
        """Pass the boundary after `completed` steps: "go" on, "save" first, "stop" here, "leave" without saving."""
        member = self.member
        with self.changed:
            if self._broken and self._asked_to_stop():
                return "leave"
            if member.frozen is not None:
                self.changed.wait_for(lambda: member.frozen is None, self.grace)
            if member.abandoned is not None:
                self._main_left = True
                return "leave"
            if member.stop is not None and member.stop["step"] <= completed:
                self._main_left = True
                return "stop"
            if member.save_at is not None and member.save_at <= completed:
                member.save_at = None
                return "save"
            member.passed, member.polls = completed, 0
            return "go"

    def poll(self) -> bool:
        """Pass a poll point inside a step; True when all ranks are to leave the loop they are in at this very point."""
        member = self.member
        with self.changed:
            if member.frozen is not None:
                self.changed.wait_for(lambda: member.frozen is None, self.grace)
            member.polls += 1
            return member.abandoned is not None or member.cut

    def begin_save(self, step: int) -> None:
        """The save of `step` begins now on this rank: the next interval is counted from here."""
        with self.changed:
            self._saving, self._last_save = True, time.monotonic()
            if self._cut_off() is None:
                self._say({"t": "here", "step": step})

    def arrive(self, step: int, needs: float, stall: float) -> Message | None:
        """Wait until every rank has the state of `step`, ready to write. Returns None, or {"error", "skipped"}.

        `needs` and `stall` (seconds) are what this rank expects to write for, and for how long its training was held.
        """
        member = self.member
        with self.changed:
            member.forget_before(step)
            if self._cut_off() is None:
                self._say({"t": "arrived", "step": step, "needs": needs, "stall": stall})
            self.changed.wait_for(
                lambda: step in member.may_write or step in member.settled or self._cut_off() is not None
            )
            if step in member.settled:
                return member.settled[step]
            if step in member.may_write:
                return None
            why = str(self._cut_off())
            self._say({"t": "unwritten", "step": step, "error": why})  # heard when the connection is there again
            return {"error": why, "skipped": False}

    def unwanted(self, step: int) -> bool:
        """Whether the checkpoint of `step` was given up while this rank still writes it."""
        return step in self.member.settled

    def slowest_stall(self, step: int) -> float:
        """Rank 0: seconds that the save of `step` held up the training on the rank where that took longest."""
        assert self.leader is not None
        with self.changed:
            commit = self.leader.commits.get(step)
            return commit.stall if commit is not None else 0.0

    def time_left(self) -> float:
        """Seconds to the kill as this rank knows it; infinite while nobody is stopping."""
        return self._stop_known_at + self.grace - time.monotonic()

    def give_up(self, step: int, why: str) -> None:
        """Rank 0: abandon the save of `step` that is under way. The other ranks only say so when rank 0 does."""
        if self.leader is not None:
            with self.changed:
                self._announce(self.leader.give_up(step, why))

    def report(self, step: int, message: Message) -> None:
        """Tell rank 0 what this rank wrote, or why it could not."""
        with self.changed:
            self._say({"step": step, **message})

    def collect(self, step: int) -> dict[int, Message]:
        """Rank 0: wait for every rank's report, as long as all can still come and the stop's grace is not over.

        When all are there, the checkpoint can no longer be given up.
        """
        assert self.leader is not None
        leader, started = self.leader, time.monotonic()
        with self.changed:
            commit = leader.commits[step]
            while len(commit.reports) < leader.size and not (leader.gone.keys() - commit.reports.keys()):
                left = min(leader.time_left(time.monotonic()), started + WRITE_LIMIT - time.monotonic())
                if left <= 0 or commit.failed is not None:
                    break
                self.changed.wait(min(1.0, max(0.01, left)))
            commit.publishing = commit.failed is None and len(commit.reports) == leader.size
            return dict(commit.reports)

    def settle(self, step: int, error: str | None) -> None:
        """Rank 0: tell everybody whether the checkpoint of `step` is published."""
        with self.changed:
            self._announce([{"t": "settled", "step": step, "ok": error is None, "error": error, "skipped": False}])

    def wait_settled(self, step: int) -> str | None:
        """Wait for rank 0's word on the checkpoint of `step`. Returns why it failed, or None."""
        with self.changed:
            self.changed.wait_for(lambda: step in self.member.settled or self.member.alone, WRITE_LIMIT + 60)
            outcome = self.member.settled.get(step)
            if outcome is None:
                return self.member.alone or "rank 0 never said whether the checkpoint was published"
            return None if outcome["ok"] else str(outcome["error"])

    def saved(self) -> None:
        """The save that was under way has ended, one way or the other."""
        with self.changed:
            self._saving = False
            self.changed.notify_all()

    @property
    def stop_requested(self) -> bool:
        """True as soon as this rank knows that the run is to stop: by a signal of its own or by another rank."""
        return self.signal is not None or self.member.stop is not None or self.member.abandoned is not None

    def close(self, ok: bool, why: str, together: bool, last: Callable[[], None] = lambda: None) -> None:
        """Say goodbye and end the thread. When all ranks end `together`, rank 0 gives them a moment to say it first.

        `last` is what else must be done before a signal may end the process.
        """
        with self.changed:
            self._main_left = True
            if self._spoke is not None:
                self._spoke.send({"t": "bye", "ok": ok, "why": why})
            self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(self.patience)
        if self._hub is not None:
            self._hub.close(wait=together, patience=min(5.0, self.patience))
        if self._spoke is not None:
            self._spoke.close()
        self._selector.close()
        try:
            last()
        finally:
            self.signals.restore(stopped=self.stop_requested)
        self._wake_read.close()
        self._wake_write.close()

    @property
    def rank0_address(self) -> str:
        """Where this rank reaches rank 0."""
        return self._spoke.address if self._spoke is not None and self._spoke.address else self.world.host

    def _cut_off(self) -> str | None:
        return self.member.abandoned or self.member.alone

    # ---- both sides, under the lock --------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        """To rank 0; on rank 0 itself without a detour."""
        if self.leader is not None:
            self._announce(self.leader.handle(0, message, time.monotonic()))
        elif self._spoke is not None:
            self._spoke.send(message)
            self._wake()

    def _announce(self, messages: list[Message]) -> None:
        """Rank 0: to everybody, this rank included."""
        assert self.leader is not None
        for message in messages:
            if self._hub is not None:
                self._hub.send_all(message)
            answer = self.member.handle(message)
            if answer is not None:
                self._announce(self.leader.handle(0, answer, time.monotonic()))
        if messages:
            self.changed.notify_all()
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already; closed: nobody needs it
            self._wake_write.send(b"x")

    # ---- the background thread -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._closed():
                for key, _ in self._selector.select(_TICK):
                    with self.changed:
                        key.data(key.fileobj)
                self._end_if_stuck()
                self.on_tick(time.monotonic())
        except Exception as error:
            # A bug here must not leave the main thread waiting for an answer that will never come.
            log.exception("the side channel failed; the training goes on without checkpoints")
            with self.changed:
                self.member.leader_lost(f"the side channel failed: {error!r}", self.signal is not None)
                self.changed.notify_all()
                self._broken = True

    def _closed(self) -> bool:
        """One round of the background thread's work; True at the end."""
        with self.changed:
            self._exchange()
            self._tick(time.monotonic())
            if self._hub is not None:
                self._hub.flush()
            if self._spoke is not None:
                self._spoke.flush()
            return self._closing

    def _woken(self, source: object) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)

    def _asked_to_stop(self) -> bool:
        """While joining, before the thread runs: has a signal come?"""
        number = self.signals.received()
        if number is not None:
            self.signal = self.signal or number.name
        return self.signal is not None

    def _signalled(self, source: object) -> None:
        number = self.signals.received()
        if number is None or self.signal is not None:
            return  # a second signal changes nothing, least of all a save in progress
        self.signal = number.name
        self._stop_known_at = time.monotonic()
        self._request_stop()

    def _request_stop(self) -> None:
        asked = {"t": "stop", "signal": self.signal, "asked_at": time.time()}
        if self.member.alone is not None:
            self.member.abandoned = self.member.abandoned or self.member.alone
            self.changed.notify_all()
        else:
            self._say(asked)

    def _exchange(self) -> None:
        """Take in what came over the connections."""
        if self._hub is not None and self.leader is not None:
            for rank, message in self._hub.take(self.leader.sticky):
                self._announce(self._from_rank(self.leader, rank, message))
            self.changed.notify_all()
        if self._spoke is not None:
            for message in self._spoke.take():
                self._from_leader(self._spoke, message)
            self.changed.notify_all()

    def _from_rank(self, leader: Leader, rank: int, message: Message) -> list[Message]:
        now = time.monotonic()
        match message["t"]:
            case "bye":
                return leader.lost(rank, "it has finished" if message["ok"] else f"it failed: {message['why']}", now)
            case "lost":
                if rank not in leader.gone:
                    self._note("peer", phase="lost", rank=rank, why=message["why"])
                return leader.lost(rank, message["why"], now)
            case "back":
                self._note("peer", phase="back", rank=rank)
                leader.returned(rank)
                return []
        return leader.handle(rank, message, now)

    def _from_leader(self, spoke: Spoke, message: Message) -> None:
        match message["t"]:
            case "lost":
                self.member.leader_lost(f"rank 0 is gone: {message['why']}", self.signal is not None)
            case "back":
                self.member.leader_back()
            case _:
                answer = self.member.handle(message)
                if answer is not None:
                    spoke.send(answer)

    def _tick(self, now: float) -> None:
        if self.leader is not None:
            self._announce(self.leader.tick(now))
            due = self.save_period is not None and now - self._last_save >= self.save_period
            if due and not self._saving:
                self._last_save = now
                self._announce(self.leader.ask_save(now))
        if self.member.stop is not None:
            self._stop_known_at = min(self._stop_known_at, now)
        # Rank 0 gives up on silent peers by itself, sooner than this: so it is rank 0 that is silent.
        bound = self.grace if self.member.stop is not None else 2.5 * self.patience
        if self.leader is None and self.member.abandoned is None and now >= self._stop_known_at + bound:
            self.member.leader_lost("rank 0 never answered in time", stopping=True)
            self.changed.notify_all()
        if self.member.hopeless is not None and self._hopeless_at is None:
            self._hopeless_at = now
            log.warning("stopping without a new checkpoint: %s", self.member.hopeless)

    def _end_if_stuck(self) -> None:
        """End the process when its stop was abandoned and its main thread does not come back.

        It sits in a collective with a peer that is gone. What was copied to host memory before may still be on its way
        to the disk, and is waited for; beyond that nothing can be saved any more, and every second the process stays
        keeps the job's nodes from being used.
        """
        if self._hopeless_at is None or self._main_left or (self._saving and self.time_left() > 0):
            return
        if time.monotonic() - self._hopeless_at >= min(_LINGER, self.patience):
            self.on_stuck(f"{self.member.hopeless}; the training did not come back from its step")
            os._exit(EXIT_STUCK)
