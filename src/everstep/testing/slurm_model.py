"""A small model of one Slurm cluster on a clock of the test's choice: the behaviour that healing depends on.

What it does was measured on Slurm 22.05, 24.11 and 26.05, and the contract suite runs against this model and the real
thing alike: signals and requeue, KillWait, the lag with which a controller notices an exit, nodes that die, drain and
down, the start a job waits two minutes for, and the bugs of old releases that the recipe guards against.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from everstep.core.errors import Conflict, NotFound, Refused, Unreachable
from everstep.core.scheduler_state import WAITING_JOB_STATES, SchedulerSnapshot, SlurmNode
from everstep.core.slurm_text import JobRecord, relaunch_needs_pause, version_tuple
from everstep.testing.slurm_parts import ModelJob, ModelNode
from everstep.testing.slurm_training import JobSpec, Training

# cred_expire (120 s) + 1: a requeued job may not start before, unless told to.
REQUEUE_DELAY = 121.0
# A silent node is marked after about 22 s, and set DOWN after SlurmdTimeout.
NOT_RESPONDING_AFTER = 22.0
# From the last exit that a slurmd has noticed to the job's next state.
EPILOG_SECONDS = 0.7
_HELD_REASON = "job requeued in held state"


@dataclass(slots=True)
class SlurmModel:
    """One Slurm cluster. Time passes when it is asked: everything due up to ``now()`` happens first, in order.

    Attributes:
        now: Unix seconds of the test's clock.
        kill_wait: seconds from SIGTERM to SIGKILL.
        slurmd_timeout: seconds of silence after which a node is set DOWN.
        reachable: False makes every call raise Unreachable.
        told: (job, message) of every message that a job was sent.
    """

    now: Callable[[], float]
    cluster: str = "slurm/main"
    version: str = "24.11.5"
    kill_wait: float = 120.0
    slurmd_timeout: float = 300.0
    reachable: bool = True
    nodes: dict[str, ModelNode] = field(default_factory=dict)
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _next_id: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # What a test does to the cluster.

    def add_nodes(self, *names: str, gpus: int = 1) -> None:
        self._settle()
        for name in names:
            self.nodes[name] = ModelNode(name, gpus)
        self._plan_tick(self.now())

    def submit(self, spec: JobSpec | None = None) -> str:
        """The new job's id; it starts at the next full second when there are nodes for it."""
        self._settle()
        spec = spec or JobSpec()
        job_id, now = str(next(self._next_id)), self.now()
        self.jobs[job_id] = ModelJob(
            job_id, spec, Training(spec), requeue=spec.requeue, eligible_at=now, submitted_at=now
        )
        self._plan_tick(now)
        return job_id

    def power_off(self, name: str) -> None:
        """The node dies without a word; Slurm notices later."""
        self._settle()
        node, at = self.nodes.get(name), self.now()
        if node is None:  # forgotten, or never seen
            return
        node.alive = False
        for job in self._jobs_on(name):
            job.training.stall(at)
            if not any(self.nodes[n].alive for n in job.nodes if n in self.nodes):
                job.training.vanish(at)
        self._at(at + NOT_RESPONDING_AFTER, lambda _: self._mark_silent(node))
        self._at(at + self.slurmd_timeout, lambda t: self._time_out(node, t))

    def power_on(self, name: str) -> None:
        """The node boots and registers; what ran there is gone. A DRAIN stays, a DOWN without one does not."""
        self._settle()
        node = self.nodes.setdefault(name, ModelNode(name))
        if not node.alive:
            self.set_down(node, self.now())
        node.alive = node.responding = True
        node.down = False
        self._plan_tick(self.now())

    def cancel(self, job_id: str) -> None:
        """``scancel``."""
        self._settle()
        job = self._job(job_id)
        if job.state in WAITING_JOB_STATES:
            job.state, job.nodes = "CANCELLED", ()
        elif job.state == "COMPLETING":
            job.ends_as = "CANCELLED"
        elif job.state == "RUNNING":
            self.kill(job, self.now(), "CANCELLED")

    # What the operations do, in Slurm's own words.

    def read(self) -> None:
        """Lets time catch up; raises Unreachable while the controller is away."""
        if not self.reachable:
            raise Unreachable("scontrol: Unable to contact slurm controller (connect failure)")
        self._settle()

    def snapshot(self) -> SchedulerSnapshot:
        self.read()
        return SchedulerSnapshot(
            cluster=self.cluster,
            version=self.version,
            taken_at=self.now(),
            nodes=tuple(self.node_view(node) for node in self.nodes.values()),
            jobs=tuple(job.view() for job in self.jobs.values()),
        )

    def record(self, job_id: str) -> JobRecord:
        return self._job(job_id).record()

    def node_view(self, node: ModelNode) -> SlurmNode:
        used = sum(job.gpus_on(node.name) for job in self.jobs.values())
        completing = any(job.state == "COMPLETING" and node.name in job.finishing for job in self.jobs.values())
        return node.view(used, completing)

    def update_node(self, name: str, state: str, reason: str) -> None:
        node = self.nodes.get(name)
        if node is None:
            raise NotFound("slurm_update error: Invalid node name specified")
        match state:
            case "DRAIN":
                node.drain, node.reason = True, reason
            case "DOWN":
                node.reason = reason
                self.set_down(node, self.now())
            case "RESUME":
                if not (node.drain or node.down):
                    raise Conflict("slurm_update error: Invalid node state specified")
                node.drain = node.down = False
                node.reason = ""
                self._plan_tick(self.now())
            case other:
                raise Refused(f"the model knows no node state {other}")

    def delete_node(self, name: str) -> None:
        if name not in self.nodes:
            raise NotFound(f"delete_node nodename={name}: Invalid node name specified")
        if any(name in job.nodes for job in self.jobs.values() if job.state in {"RUNNING", "COMPLETING"}):
            raise Conflict(f"delete_node nodename={name}: Requested nodes are busy")
        del self.nodes[name]

    def requeue_held(self, job_id: str) -> None:
        job, at = self._job(job_id), self.now()
        if job.state in WAITING_JOB_STATES:
            raise Conflict(f"Job is pending execution for job {job_id}")
        if not job.spec.batch:
            raise Refused("Only batch jobs are accepted or processed")
        if not job.requeue:
            raise Refused("Requested operation is presently disabled")
        job.restarts += 1
        job.held, job.reason = True, _HELD_REASON
        if job.state == "RUNNING":
            self.kill(job, at, "PENDING")
        elif job.state == "COMPLETING":
            job.ends_as = "PENDING"
        else:
            self._back_to_queue(job, at)

    def set_requeue(self, job_id: str) -> None:
        job = self._job(job_id)
        if job.state not in {"RUNNING", "COMPLETING"} | WAITING_JOB_STATES:
            raise Conflict("Job has already finished")
        job.requeue = True
        self._plan_tick(self.now())  # every change of a job wakes the scheduler

    def hold(self, job_id: str) -> None:
        job = self._job(job_id)
        job.held = True
        if job.state in WAITING_JOB_STATES:
            job.reason = "JobHeldAdmin"

    def release(self, job_id: str) -> None:
        job = self._job(job_id)
        job.held, job.reason = False, "None"
        self._plan_tick(self.now())

    def start_now(self, job_id: str) -> None:
        job = self._job(job_id)
        if job.state not in WAITING_JOB_STATES:
            raise Conflict(f"{job_id}: Job is no longer pending execution")
        job.eligible_at = self.now()
        self._plan_tick(self.now())

    # How it runs.

    def kill(self, job: ModelJob, at: float, ends_as: str) -> None:
        """SIGTERM on every node that lives; each is done when its slurmd has noticed the exit."""
        job.state, job.ends_as = "COMPLETING", ends_as
        job.finishing = set(job.nodes)
        deadline = at + self.kill_wait
        spec = job.spec
        alive = [name for name in job.nodes if self.nodes[name].alive]
        if alive:
            job.training.sigterm(at, deadline)
        else:
            job.training.vanish(at)
        takes = min(spec.save_seconds if spec.heeds_sigterm else math.inf, self.kill_wait)
        for name in alive:
            self._at(at + _noticed_after(takes), self._done_on(job, name))

    def set_down(self, node: ModelNode, at: float) -> None:
        """Work on it is over at once for Slurm; a live node that is drained answers and stays drained only."""
        node.down = True
        for job in self._jobs_on(node.name):
            if job.state == "RUNNING":
                requeue = job.spec.batch and job.requeue
                job.restarts += requeue
                job.reason = _HELD_REASON if job.held else "BeginTime"
                self.kill(job, at, "PENDING" if requeue else "NODE_FAIL")
            self._finish_on(job, node.name, at, by_down=True)
        if node.alive and node.drain and version_tuple(self.version) >= (24, 11):
            self._at(at + 0.6, lambda _: setattr(node, "down", False))

    def _done_on(self, job: ModelJob, name: str) -> Callable[[float], None]:
        run = job.run

        def done(at: float) -> None:
            if job.run == run and job.state == "COMPLETING" and self.nodes[name].alive:
                self._finish_on(job, name, at)

        return done

    def _finish_on(self, job: ModelJob, name: str, at: float, by_down: bool = False) -> None:
        if name not in job.finishing:
            return
        job.finishing.discard(name)
        if job.finishing:
            return
        job.run += 1
        if job.ends_as != "PENDING":
            job.state, job.ended_at = job.ends_as, at
        elif by_down and version_tuple(self.version) < (24, 11, 1):
            self._stale_allocation(job, at)
        else:
            self._back_to_queue(job, at)
        self._plan_tick(at)

    def _back_to_queue(self, job: ModelJob, at: float) -> None:
        job.state = "EXPEDITING" if job.spec.expedite else "PENDING"
        job.nodes, job.started_at, job.ended_at = (), None, None
        job.submitted_at = at
        job.eligible_at = at if job.spec.expedite else at + REQUEUE_DELAY
        if not job.held:
            job.reason = "BeginTime"
            self._plan_tick(job.eligible_at)

    def _stale_allocation(self, job: ModelJob, at: float) -> None:
        """The bug of old releases: back in the queue with its nodes; not held, it starts at once and fails."""
        nodes = job.nodes
        self._back_to_queue(job, at)
        job.nodes = nodes
        if not job.held:
            job.state = "FAILED"
            for name in nodes:
                self.nodes[name].leaked += job.spec.gpus_per_node

    def _start(self, job: ModelJob, nodes: tuple[str, ...], at: float) -> None:
        too_soon = job.restarts > 0 and int(at) == int(job.submitted_at) and relaunch_needs_pause(self.version)
        job.nodes, job.started_at, job.reason = nodes, at, "None"
        job.run += 1
        if too_soon:  # "Job credential revoked"
            job.state, job.nodes = "FAILED", ()
            return
        job.state = "RUNNING"
        job.training.start(job.restarts, at)
        ends_at = job.training.ends_at()
        if ends_at is not None:
            self._at(ends_at, self._finished(job))

    def _finished(self, job: ModelJob) -> Callable[[float], None]:
        run = job.run

        def finished(at: float) -> None:
            if job.run != run or job.state != "RUNNING" or not all(self.nodes[n].alive for n in job.nodes):
                return
            failed = job.spec.exit_code != 0
            job.training.end(at, "failed" if failed else "finished")
            if failed and job.spec.expedite:
                job.restarts += 1
                job.state, job.nodes, job.held = "REQUEUE_HOLD", (), True
            else:
                job.state, job.ended_at = "FAILED" if failed else "COMPLETED", at
            self._plan_tick(at)

        return finished

    def _schedule(self, at: float) -> None:
        for job in self.jobs.values():
            if job.state not in WAITING_JOB_STATES or job.held or job.stale or job.eligible_at > at:
                continue
            free = [name for name, node in self.nodes.items() if node.usable and self._free(node, job)]
            if len(free) >= job.spec.nodes:
                self._start(job, tuple(free[: job.spec.nodes]), at)
            else:
                job.reason = "Resources"

    def _free(self, node: ModelNode, job: ModelJob) -> bool:
        used = node.leaked + sum(other.gpus_on(node.name) for other in self.jobs.values())
        return node.gpus - used >= job.spec.gpus_per_node

    def _mark_silent(self, node: ModelNode) -> None:
        node.responding = node.alive

    def _time_out(self, node: ModelNode, at: float) -> None:
        if self.nodes.get(node.name) is node and not node.alive and not node.down:  # it may be deleted by now
            node.reason = node.reason or "Not responding"
            self.set_down(node, at)

    def _jobs_on(self, name: str) -> Iterable[ModelJob]:
        return [job for job in self.jobs.values() if name in job.nodes and job.state in {"RUNNING", "COMPLETING"}]

    def _job(self, job_id: str) -> ModelJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFound(f"Slurm does not know job {job_id}")
        return job

    def _plan_tick(self, after: float) -> None:
        """The scheduler looks at the queue at full seconds."""
        self._at(math.floor(after) + 1.0, self._schedule)

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _settle(self) -> None:
        now = self.now()
        while self._events and self._events[0][0] <= now:
            time, _, event = heapq.heappop(self._events)
            event(time)


def _noticed_after(seconds: float) -> float:
    """slurmd looks every second for 11 s, then every 10 s (measured alike on 22.05, 24.11 and 26.05)."""
    polls = math.ceil(seconds) if seconds <= 11 else 11 + 10 * math.ceil((seconds - 11) / 10)
    return polls + EPILOG_SECONDS
