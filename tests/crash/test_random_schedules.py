"""Random bad days: what may go wrong at any moment of a heal, several at once, and what must hold all the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import structlog
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from everstep.core.draft import OUR_PREFIX
from everstep.core.policy import Policy
from everstep.core.remediation_status import Outcome, order_violations
from everstep.testing.crashes import CrashPlan, Side
from everstep.testing.scenario import Process, Scenario
from everstep.testing.slurm_training import JobSpec

POLICY = Policy(
    isolate_deadline=120.0, vacate_deadline=120.0, validate_deadline=60.0, spare_deadline=240.0, retire_deadline=120.0,
    resume_deadline=600.0,
)  # fmt: skip
LIMIT = 4000.0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def _lose_drains(s: Scenario) -> None:
    """slurmctld dies just after a drain was set: its saved state is older."""
    for node in s.slurm.nodes.values():
        if node.reason.startswith(OUR_PREFIX):
            node.drain, node.reason = False, ""


def _away(s: Scenario, port: str, seconds: float) -> None:
    thing = {"slurm": s.slurm, "cluster": s.cluster, "provider": s.provider}[port]
    thing.reachable = False
    s.clock.plan(seconds, lambda: setattr(thing, "reachable", True))


def _spare_dies(s: Scenario) -> None:
    spares = [n.name for n in s.fleet.nodes.values() if n.taints and n.alive]
    if spares:
        s.fleet.power_off(spares[0])


def _claimed_spare_breaks(s: Scenario) -> None:
    for node in list(s.fleet.nodes.values()):
        if node.annotations and node.alive:
            s.fleet.break_gpu(node.name)


def _uncordon(s: Scenario) -> None:
    for node in s.fleet.nodes.values():
        node.unschedulable = False


def _delete_records(s: Scenario) -> None:
    for name in list(s.records.records):
        s.records.delete(name)


def _crash(s: Scenario) -> None:
    s.plan.at = len(s.plan.calls) + 3


EVENTS: dict[str, Callable[[Scenario], None]] = {
    "slurmctld loses its drains": _lose_drains,
    "Slurm is away for 20 s": lambda s: _away(s, "slurm", 20.0),
    "Kubernetes is away for 20 s": lambda s: _away(s, "cluster", 20.0),
    "the provider is away for 30 s": lambda s: _away(s, "provider", 30.0),
    "a spare dies": _spare_dies,
    "the claimed spare's GPU breaks": _claimed_spare_breaks,
    "a second node's GPU breaks": lambda s: s.fleet.break_gpu("gpu-2", code="48"),
    "the faulty node loses power": lambda s: s.fleet.power_off("gpu-1"),
    "writes conflict": lambda s: setattr(s.records, "conflicts", 3),
    "the controller dies": _crash,
    "notices fail": lambda s: setattr(s.notifier, "working", False),
    "a person uncordons": _uncordon,
    "a person deletes the record": _delete_records,
    "the user cancels the job": lambda s: s.slurm.cancel(s.job_id),
}
PEOPLE = {"a person uncordons", "a person deletes the record"}


@dataclass(frozen=True)
class Day:
    version: str
    job: JobSpec
    events: tuple[tuple[float, str], ...]
    two_leaders: bool


days = st.builds(
    Day,
    version=st.sampled_from(["22.05.8", "24.11.5", "26.05.5"]),
    job=st.builds(
        JobSpec,
        save_seconds=st.sampled_from([0.5, 2.0, 15.0, 150.0]),
        save_every=st.sampled_from([0, 50]),
        heeds_sigterm=st.booleans(),
        requeue=st.booleans(),
        writes_record=st.booleans(),
        total_steps=st.sampled_from([None, None, 400]),
        expedite=st.just(False),
    ),
    events=st.lists(
        st.tuples(st.sampled_from([0.1, 0.6, 1.1, 2.3, 3.1, 4.2, 5.0, 7.0, 20.0, 60.0]), st.sampled_from(list(EVENTS))),
        max_size=4,
    ).map(lambda found: tuple(sorted(found))),
    two_leaders=st.booleans(),
)


def live(day: Day) -> Scenario:
    scenario = Scenario(
        policy=POLICY, version=day.version, nodes=3, spares=2, job=day.job, plan=CrashPlan(0, Side.AFTER)
    )
    if day.two_leaders:
        scenario.processes.append(Process(scenario))
    scenario.fleet.break_gpu("gpu-1")
    for seconds, event in day.events:
        scenario.clock.plan(seconds + 2.0, lambda event=event: EVENTS[event](scenario))  # type: ignore[misc]

    def over() -> bool:
        quiet = scenario.clock.now() > start + 100.0
        return (
            quiet
            and bool(scenario.records.records)
            and all(r.status.resolved for r in scenario.records.records.values())
        )

    start = scenario.clock.now()
    asyncio.run(scenario.run(LIMIT, until=over))
    return scenario


def wrongs(scenario: Scenario, day: Day) -> list[str]:
    names = {event for _, event in day.events}
    wrong = list(scenario.fleet.violations)
    for record in scenario.records.records.values():
        status = record.status
        if not status.resolved:
            wrong.append(f"{record.name} never ended: {status.stage} {status.reason}")
        if status.outcome is Outcome.ESCALATED and not names:
            wrong.append(f"{record.name} was escalated on a day without trouble: {status.reason}")
        if status.outcome is Outcome.CANCELLED and not names & PEOPLE and "part of" not in status.reason:
            wrong.append(f"{record.name} was cancelled by nobody: {status.reason}")
        wrong += order_violations(status.steps)
        if scenario.fleet.claims(record.name):
            wrong.append(f"{record.name} keeps a claim")
    job = scenario.slurm.snapshot().job(scenario.job_id)
    if job is None:
        wrong.append("the job is lost")
    elif job.waiting and job.held:
        wrong.append(f"the job is left held ({job.state})")
    elif job.state not in {"RUNNING", "PENDING", "COMPLETED"} and not (
        job.state == "CANCELLED" and "the user cancels the job" in names
    ):
        wrong.append(f"the job ended as {job.state}")
    return wrong


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a day is readable as it is, and shrinking one takes minutes
)
@given(days)
def test_no_bad_day_breaks_a_promise(day: Day) -> None:
    scenario = live(day)
    for record in scenario.records.records.values():
        note(f"{record.name}: {record.status.outcome} {record.status.reason}")
    assert not wrongs(scenario, day)
