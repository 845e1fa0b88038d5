"""The thread that turns snapshots into checkpoints, one at a time, while the training goes on."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .agreement import Message, Note
from .errors import CheckpointError
from .team import Team

log = logging.getLogger("everstep_checkpoint")

MARGIN = 1.5  # a save is only started when this many times its expected length is left before the kill


@dataclass(frozen=True, slots=True)
class Job:
    """One save. `bytes` is this rank's part; `write` puts it on the disk and returns the report for rank 0.

    `publish` runs on rank 0 with the reports of all ranks and returns the size of the whole checkpoint, `discard`
    removes what a failed save leaves. `began` is in monotonic seconds, `stall` the seconds that the training was held;
    `problem` says why there is nothing to write.
    """

    step: int
    why: str
    bytes: int
    write: Callable[[], Message]
    publish: Callable[[dict[int, Message]], int]
    discard: Callable[[], None]
    began: float
    stall: float
    problem: str | None = None


class Saver:
    """Takes jobs from the main thread. Rank 0's also deletes what is old."""

    def __init__(self, team: Team, note: Note, retain: Callable[[], object]) -> None:
        self._team, self._note, self._retain = team, note, retain
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self.saved_step: int | None = None
        self.rate: float | None = None  # bytes a second of the last write, this rank's part
        self.write_seconds: float | None = None  # from the snapshot to the name, of the last checkpoint
        self.stall: float = 0.0  # on the slowest rank
        self.on_periodic: Callable[[], None] = lambda: None

    def submit(self, job: Job) -> None:
        """Begin a save in the background; only when `wait` has said that the last one is over."""
        with self._changed:
            assert self._job is None
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="everstep-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being saved; False when that took longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, timeout)

    @property
    def in_flight(self) -> Job | None:
        return self._job

    def expected(self, size: int) -> float:
        """Seconds that writing `size` bytes is expected to take; 0 when nothing was measured yet."""
        return size / self.rate if self.rate else 0.0

    def make_room(self, size: int) -> None:
        """A stop's save of `size` bytes is due: give the one in flight up if both do not fit, but the new one does."""
        job, left = self.in_flight, self._team.time_left()
        if job is None:
            return
        new = self.expected(size) * MARGIN
        rest = max(0.0, self.expected(job.bytes) - (time.monotonic() - job.began))
        if new <= left < new + rest:
            self._team.give_up(job.step, "given up: the stop's own save needs the time that is left")

    def close(self, timeout: float | None) -> None:
        """Let the save in flight end, at most `timeout` seconds, and end the thread."""
        self.wait(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closing)
                job = self._job
            if job is None:
                return
            try:
                self._save(job)
            except Exception as error:
                log.exception("a bug in saving; the training goes on")
                self._note("save", phase="failed", step=job.step, bytes=0, seconds=0.0, why=repr(error))
            finally:
                self._team.saved()
                with self._changed:
                    self._job = None
                    self._changed.notify_all()

    def _save(self, job: Job) -> None:
        """One checkpoint, together with all ranks. A failure is reported and does not end training."""
        team, step, size = self._team, job.step, 0
        refused = team.arrive(step, self.expected(job.bytes) * MARGIN, job.stall)
        started = time.monotonic()
        if refused is None:
            message = self._written(job)
            team.report(step, message)
            if team.leader is not None:
                size, error = self._publish(job)
                team.settle(step, error)
            error = team.wait_settled(step)
        else:
            error = str(refused["error"])
        now = time.monotonic()
        if error is None:
            self.stall, self.write_seconds = max(job.stall, self._slowest(step)), now - job.began
            self.saved_step = step
            seconds = {"seconds": round(now - job.began, 3), "stall_s": round(self.stall, 6)}
            seconds["write_s"] = round(now - started, 3)
            self._note("save", phase="committed", step=step, bytes=size, why=job.why, **seconds)
            with contextlib.suppress(OSError):
                self._retain()
            if job.why == "periodic":
                self.on_periodic()
            return
        phase = "skipped" if refused is not None and refused.get("skipped") else "failed"
        seconds = {"seconds": round(now - job.began, 3), "stall_s": round(job.stall, 6)}
        self._note("save", phase=phase, step=step, bytes=job.bytes if phase == "skipped" else 0, why=error, **seconds)
        if team.leader is not None:
            job.discard()
            log.warning("no checkpoint of step %d: %s", step, error)

    def _slowest(self, step: int) -> float:
        return self._team.slowest_stall(step) if self._team.leader is not None else 0.0

    def _written(self, job: Job) -> Message:
        if job.problem is not None:
            return {"t": "unwritten", "error": job.problem}
        began = time.monotonic()
        try:
            message = job.write()
        except Exception as failure:
            if not isinstance(failure, OSError | CheckpointError):
                log.exception("writing the checkpoint of step %d failed", job.step)
            return {"t": "unwritten", "error": f"{type(failure).__name__}: {failure}"}
        self.rate = job.bytes / max(time.monotonic() - began, 1e-3)
        return message

    def _publish(self, job: Job) -> tuple[int, str | None]:
        """Rank 0: wait for everybody's report and publish; returns (bytes, why not)."""
        reports = self._team.collect(job.step)
        for rank in range(self._team.world.size):
            report = reports.get(rank)
            if report is None:
                given_up = self._team.member.settled.get(job.step)
                why = str(given_up["error"]) if given_up else f"rank {rank} did not finish writing in time, or is gone"
                return 0, why
            if report["t"] == "unwritten":
                return 0, f"rank {rank}: {report['error']}"
        try:
            return job.publish(reports), None
        except (OSError, ValueError, KeyError, CheckpointError) as error:
            return 0, f"{type(error).__name__}: {error}"
