"""A heal on fakes and virtual time: the real engine, driven pass by pass, with crashes wherever a test wants them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.core.errors import Conflict, EverstepError
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation
from everstep.engine.aftercare import Aftercare
from everstep.engine.fleet_watch import LOOK_EVERY, FleetWatch
from everstep.engine.reconcile import Reconciler
from everstep.engine.sight import Sight
from everstep.engine.world import World
from everstep.testing.cluster import FakeCluster
from everstep.testing.crashes import Crash, CrashPlan, Life
from everstep.testing.fleet import Fleet
from everstep.testing.people import FakeNotifier, FakeProvider
from everstep.testing.scheduler import FakeScheduler
from everstep.testing.slurm_model import SlurmModel
from everstep.testing.slurm_training import JobSpec
from everstep.testing.storage import FakeFleetIncidents, FakeRemediations
from everstep.testing.virtual_clock import VirtualClock

INCIDENTS = "/incidents"
FLEET = "/fleet"
REPAIR = "/repair/"
RESTART_SECONDS = 2.0
CALL_SECONDS = 0.002


@dataclass(slots=True)
class Scenario:
    """Two nodes in service, one spare, one two-node job; then whatever the test does to them.

    Attributes:
        looks_across: the look across the fleet runs, too; without it nobody looks at Slurm but the heals.
    """

    policy: Policy = field(default_factory=Policy)
    version: str = "24.11.5"
    spares: int = 1
    nodes: int = 2
    job: JobSpec = field(default_factory=JobSpec)
    plan: CrashPlan = field(default_factory=CrashPlan)
    looks_across: bool = False
    clock: VirtualClock = field(init=False)
    slurm: SlurmModel = field(init=False)
    fleet: Fleet = field(init=False)
    cluster: FakeCluster = field(init=False)
    scheduler: FakeScheduler = field(init=False)
    provider: FakeProvider = field(init=False)
    notifier: FakeNotifier = field(init=False)
    records: FakeRemediations = field(init=False)
    fleet_incidents: FakeFleetIncidents = field(init=False)
    job_id: str = field(init=False)
    crashes: int = 0
    errors: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.slurm = SlurmModel(self.clock.now, version=self.version)
        self.fleet = Fleet(self.clock, self.slurm)
        for number in range(self.nodes):
            self.fleet.add_node(f"gpu-{number + 1}")
        for number in range(self.spares):
            self.fleet.add_node(f"gpu-{self.nodes + number + 1}", spare=True)
        self.cluster = FakeCluster(self.fleet)
        self.scheduler = FakeScheduler(self.slurm, sleep=self._pass_time)
        self.provider = FakeProvider(self.fleet)
        self.notifier = FakeNotifier()
        self.records = FakeRemediations(self.clock.now, self.policy)
        self.fleet_incidents = FakeFleetIncidents()
        self.job_id = self.slurm.submit(self.job)
        self.move(20.0)
        self.processes.append(Process(self))

    @property
    def world(self) -> World:
        return World(
            self.clock, self.cluster, self.scheduler, self.provider, self.notifier, self.records, self.fleet_incidents
        )

    def record(self, node: str = "gpu-1") -> Remediation:
        """The incident of a node."""
        return next(r for r in self.records.records.values() if r.spec.node == node)

    def move(self, seconds: float) -> None:
        """Lets time pass without the controller."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.fleet.settle()
            self.clock.move_to(min(end, self.clock.now() + 0.5))
            if self.slurm.reachable:
                self.slurm.snapshot()

    async def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Runs every process for that long, or until ``until``."""
        end = self.clock.now() + seconds
        while self.clock.now() < end and not until():
            due = min((process.next_due() for process in self.processes), default=end)
            step = min(max(due, self.clock.now()), self.clock.now() + 0.5, end)
            if step > self.clock.now():
                self.fleet.settle()
                self.clock.move_to(step)
                if self.slurm.reachable:
                    self.slurm.snapshot()
            for process in self.processes:
                await process.turn()

    def tick(self) -> None:
        """Every I/O call takes a moment."""
        self.clock.move_to(self.clock.now() + CALL_SECONDS)

    def watch(self) -> None:
        """Checked between any two effects."""
        out, budget = self.fleet.out_of_service(), self.policy.budget
        missing = self.nodes - len(self.fleet.in_service())
        if len(out) > budget and missing > budget:
            note = f"{missing} nodes are missing at once, beyond the budget of {budget}"
            if note not in self.fleet.violations:
                self.fleet.violations.append(note)

    async def _pass_time(self, seconds: float) -> None:
        self.clock.move_to(self.clock.now() + seconds)


class Process:
    """One controller process: it dies by the plan, and its successor knows nothing of what was only in memory."""

    def __init__(self, scenario: Scenario, may_act: Callable[[], bool] = lambda: True) -> None:
        self._scenario = scenario
        self._may_act = may_act
        self._due: list[tuple[float, str]] = []
        self._born()

    def next_due(self) -> float:
        return self._due[0][0] if self._due else self._scenario.clock.now() + 1.0

    async def turn(self) -> None:
        """Every pass that is due; a crash ends this life and begins the next one after a while."""
        now = self._scenario.clock.now()
        names: list[str] = []
        while self._due and self._due[0][0] <= now:
            name = heapq.heappop(self._due)[1]
            if name not in names:
                names.append(name)
        for name in names:
            try:
                await self._pass(name)
            except Crash:
                self._scenario.crashes += 1
                await self._reconciler.deliveries.settle()
                self._born()
                return

    def wake(self, name: str) -> None:
        self._at(name, 0.0)

    def _born(self) -> None:
        scenario = self._scenario
        self._life = Life(scenario.world, scenario.plan, scenario.watch, scenario.clock.plan, scenario.tick)
        self.sight = Sight()
        self._reconciler = Reconciler(self._life.world, self._may_act, self.wake, self.sight)
        self._fleet_watch = FleetWatch(self._life.world, self.sight, self._may_act)
        self._aftercare = Aftercare(self._life.world, self._may_act)
        self._started = False
        self._due = []
        self._at(INCIDENTS, RESTART_SECONDS)
        if scenario.looks_across:
            self._at(FLEET, RESTART_SECONDS)

    async def _pass(self, name: str) -> None:
        try:
            again = await self._work(name)
            await self._reconciler.deliveries.settle()
            if self._life.dead:
                raise Crash(name)
        except Conflict:
            again = 0.05
        except EverstepError as error:
            self._scenario.errors.append(str(error))
            again = 1.0
        if again is not None:
            self._at(name, max(again, 0.02))
        elif not name.startswith(REPAIR):
            self._at(REPAIR + name, 0.0)

    async def _work(self, name: str) -> float | None:
        if name.startswith(REPAIR):
            return await self._aftercare.follow(name.removeprefix(REPAIR))
        if name == FLEET:
            await self._fleet_watch.turn()
            return LOOK_EVERY
        if name != INCIDENTS:
            return await self._reconciler.heal(name)
        if not self._started:
            for unfinished in await self._reconciler.unfinished():
                self._at(unfinished, 0.0)
            for healed in await self._aftercare.awaited():
                self._at(REPAIR + healed, 0.0)
            self._started = True
        return await self._reconciler.open_incidents()

    def _at(self, name: str, seconds: float) -> None:
        heapq.heappush(self._due, (self._scenario.clock.now() + seconds, name))
