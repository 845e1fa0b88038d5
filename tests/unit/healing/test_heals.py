"""Whole heals on fakes and virtual time: one for each promise and each way in which a heal may have to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everstep.core.cluster_state import OPT_OUT_LABEL
from everstep.core.errors import Unreachable
from everstep.core.policy import Mode, Policy
from everstep.core.remediation_status import JobPhase, Outcome, Remediation, Stage, StepName, order_violations
from everstep.core.scheduler_state import JobProgress
from everstep.testing.scenario import Scenario
from everstep.testing.slurm_training import JobSpec

SHORT = Policy(isolate_deadline=60.0, retire_deadline=60.0, spare_deadline=120.0, resume_deadline=300.0)


def heal(scenario: Scenario, seconds: float = 600.0, node: str = "gpu-1") -> Remediation:
    """Runs until the node's incident is over, and returns its record."""

    def over() -> bool:
        mine = [r for r in scenario.records.records.values() if r.spec.node == node]
        return bool(mine) and all(any(key == "resolved" for key, _ in r.status.told) for r in mine)

    asyncio.run(scenario.run(seconds, until=over))
    record = scenario.record(node)
    assert record.status.resolved, f"{record.status.stage}: {record.status.reason}"
    assert not order_violations(record.status.steps)
    assert not scenario.fleet.violations
    return record


def broken(**kwargs: object) -> Scenario:
    scenario = Scenario(**kwargs)  # type: ignore[arg-type]
    scenario.fleet.break_gpu("gpu-1")
    return scenario


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
def test_every_step_of_the_promise_is_on_record(version: str) -> None:
    scenario = broken(version=version)
    record = heal(scenario)
    status = record.status
    assert status.outcome is Outcome.SUCCEEDED
    assert {step.name for step in status.steps} == set(StepName)
    (job,) = status.jobs
    assert (job.restarts, job.steps_lost, job.phase) == (1, 0, JobPhase.RESUMED)
    assert job.resumed_from == job.saved_step
    assert set(scenario.slurm.jobs[job.id].nodes) == {"gpu-2", "gpu-3"}
    assert status.durations.resumed_s is not None
    assert status.durations.resumed_s < 15
    detected = status.step(StepName.DETECTED)
    assert detected is not None
    assert status.replacement is not None
    assert status.replacement.in_service_at is not None
    served = status.replacement.in_service_at - detected.at
    assert status.durations.healthy_node_s == pytest.approx(served, abs=0.001), "not when the old node was empty"
    assert "gpu-1" not in scenario.slurm.nodes, "the retired machine is gone from Slurm, too"


def test_the_drain_comes_within_half_a_second_of_the_report() -> None:
    scenario = Scenario()
    asyncio.run(scenario.run(10.0))
    scenario.fleet.break_gpu("gpu-1")
    at = scenario.clock.now()
    scenario.processes[0].wake("/incidents")  # the watch's hint
    asyncio.run(scenario.run(1.0, until=lambda: scenario.slurm.nodes["gpu-1"].drain))
    assert scenario.clock.now() - at < 0.5


def test_a_job_that_ignores_sigterm_loses_steps_and_the_record_says_how_many() -> None:
    record = heal(broken(job=JobSpec(heeds_sigterm=False, save_every=50)))
    (job,) = record.status.jobs
    assert job.saved_step == 200
    assert job.steps_lost is not None
    assert job.steps_lost > 0
    checkpointed = record.status.step(StepName.CHECKPOINTED)
    assert checkpointed is not None
    assert "did not save after the signal; its last checkpoint is step 200" in checkpointed.reason
    assert record.status.durations.resumed_s is not None
    assert 118 < record.status.durations.resumed_s < 140


def test_a_record_that_cannot_be_read_at_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = broken()
    read = scenario.scheduler.progress
    silent = True

    async def progress(cluster: str, job: str, user: str) -> JobProgress:
        if silent:
            raise Unreachable("the file server is slow today")
        return await read(cluster, job, user)

    monkeypatch.setattr(scenario.scheduler, "progress", progress)
    asyncio.run(scenario.run(20.0))
    assert scenario.record().status.step(StepName.DRAINED)
    assert scenario.record().status.step(StepName.CHECKPOINTED) is None
    silent = False
    saved = heal(scenario).status.step(StepName.CHECKPOINTED)
    assert saved is not None
    assert "saved step" in saved.reason


@pytest.mark.parametrize("unread", ["snapshots", "progress"])
def test_a_job_that_resumes_and_ends_while_nobody_could_look_is_on_record_as_resumed(
    unread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = broken(job=JobSpec(total_steps=230))
    real = getattr(scenario.scheduler, unread)

    async def blind(*about: str) -> object:
        job = scenario.slurm.jobs[scenario.job_id]
        if job.restarts and job.state == "RUNNING":
            raise Unreachable("the gateway is slow today")
        if unread == "progress" and job.state == "COMPLETED" and scenario.clock.now() - (job.ended_at or 0.0) < 5.0:
            raise Unreachable("and so is the file server")
        return await real(*about)

    monkeypatch.setattr(scenario.scheduler, unread, blind)
    record = heal(scenario)
    (job,) = record.status.jobs
    assert scenario.slurm.jobs[job.id].state == "COMPLETED"
    assert (job.phase, job.steps_lost, job.resumed_from) == (JobPhase.RESUMED, 0, job.saved_step)
    assert record.status.step(StepName.RESUMED)
    assert record.status.durations.resumed_s is not None
    assert record.status.durations.resumed_s < 15, "when it resumed, not when that was seen"


def test_a_job_without_a_record_is_not_said_to_have_lost_nothing() -> None:
    (job,) = heal(broken(job=JobSpec(writes_record=False))).status.jobs
    assert job.phase is JobPhase.RESUMED
    assert job.steps_lost is None
    assert "unknown" in job.reason


def test_a_job_that_was_submitted_with_no_requeue_is_requeued_all_the_same() -> None:
    assert heal(broken(job=JobSpec(requeue=False))).status.outcome is Outcome.SUCCEEDED


def test_a_node_without_power_is_healed_although_a_pod_forbids_it() -> None:
    scenario = Scenario(job=JobSpec(save_every=10))
    scenario.fleet.add_pod("precious", "gpu-1", labels={OPT_OUT_LABEL: "true"})
    scenario.fleet.power_off("gpu-1")
    record = heal(scenario)
    assert record.spec.faults[0].code == "node-lost"
    assert record.status.outcome is Outcome.SUCCEEDED
    checked = record.status.step(StepName.OPT_OUT_CHECKED)
    assert checked is not None
    assert "dead" in checked.reason
    assert "default/precious" in checked.reason


def test_every_node_of_a_job_dies_on_an_old_slurm() -> None:
    """The stale allocation of Slurm before 24.11.1: the job must neither fail nor leak its GPUs."""
    scenario = Scenario(version="22.05.8", nodes=3, job=JobSpec(nodes=1, save_every=10))
    node = scenario.slurm.jobs[scenario.job_id].nodes[0]
    scenario.fleet.power_off(node)
    record = heal(scenario, node=node)
    assert record.status.outcome is Outcome.SUCCEEDED
    assert scenario.slurm.jobs[scenario.job_id].state == "RUNNING"
    assert all(not n.leaked for n in scenario.slurm.nodes.values())


def test_an_opted_out_node_is_left_alone_and_its_job_is_not() -> None:
    scenario = Scenario()
    scenario.fleet.add_pod("precious", "gpu-1", labels={OPT_OUT_LABEL: "true"})
    scenario.fleet.break_gpu("gpu-1")
    record = heal(scenario)
    assert record.status.outcome is Outcome.LEFT_ALONE
    assert "default/precious carries the label" in record.status.reason
    assert not scenario.fleet.nodes["gpu-1"].unschedulable
    assert scenario.slurm.nodes["gpu-1"].drain
    job = scenario.slurm.jobs[scenario.job_id]
    assert (job.state, job.restarts, job.held) == ("PENDING", 1, False)


def test_without_a_spare_the_job_waits_until_the_repaired_machine_is_back() -> None:
    scenario = broken(spares=0)
    asyncio.run(scenario.run(30.0))
    waiting = scenario.record().status
    assert waiting.stage is Stage.REPLACING
    assert "no healthy spare of pool train is free" in waiting.reason
    assert not scenario.slurm.jobs[scenario.job_id].held
    record = heal(scenario)
    assert record.status.outcome is Outcome.SUCCEEDED
    assert record.status.replacement is not None
    assert record.status.replacement.node == "gpu-1"
    assert scenario.slurm.jobs[scenario.job_id].state == "RUNNING"


def test_dry_run_touches_nothing() -> None:
    scenario = broken(policy=Policy(mode=Mode.DRY_RUN))
    record = heal(scenario)
    assert record.status.outcome is Outcome.DRY_RUN
    assert "would drain node gpu-1, requeue job 1 of alice" in record.status.reason
    assert scenario.slurm.jobs[scenario.job_id].restarts == 0
    assert not scenario.fleet.nodes["gpu-1"].unschedulable


def test_an_interactive_job_is_told_and_gets_its_grace() -> None:
    scenario = broken(job=JobSpec(batch=False))
    start = scenario.clock.now()
    asyncio.run(scenario.run(100.0))
    assert scenario.slurm.jobs[scenario.job_id].state == "RUNNING", "within the grace nothing is taken from it"
    (told,) = [text for _, text in scenario.slurm.told]
    assert "cannot requeue an interactive job" in told
    assert "need not do anything" not in told
    scenario.slurm.cancel(scenario.job_id)
    record = heal(scenario)
    assert record.status.outcome is Outcome.SUCCEEDED
    assert scenario.clock.now() - start < 300


def test_a_job_that_ends_by_itself_is_left_alone() -> None:
    scenario = Scenario(job=JobSpec(total_steps=201))  # ends a moment after the fault
    scenario.fleet.break_gpu("gpu-1")
    scenario.slurm.reachable = False
    scenario.clock.plan(3.0, lambda: setattr(scenario.slurm, "reachable", True))
    record = heal(scenario)
    assert record.status.outcome is Outcome.SUCCEEDED
    assert scenario.slurm.jobs[scenario.job_id].restarts == 0


def test_a_job_that_the_fault_killed_before_anybody_looked_is_requeued() -> None:
    scenario = Scenario(job=JobSpec(total_steps=196, exit_code=1, save_every=10))  # crashes 0.1 s after the fault
    scenario.fleet.break_gpu("gpu-1")
    record = heal(scenario)
    (job,) = record.status.jobs
    assert job.restarts_before == 0
    assert record.status.step(StepName.SIGNALLED) is None, "nobody signalled it"
    saved = record.status.step(StepName.CHECKPOINTED)
    assert saved is not None
    assert saved.reason == "job 1 crashed before it could be asked to save; its last checkpoint is step 190"
    assert 1 <= scenario.slurm.jobs[job.id].restarts <= 4, "it crashes again and again, and is not restarted for ever"


def test_a_job_that_failed_long_before_the_fault_is_nobodys_victim() -> None:
    scenario = Scenario(job=JobSpec(total_steps=100, exit_code=1))
    scenario.fleet.break_gpu("gpu-1")
    record = heal(scenario)
    assert record.status.jobs == ()
    assert scenario.slurm.jobs[scenario.job_id].restarts == 0


def test_while_slurm_is_silent_nothing_destructive_happens_and_then_a_person_is_called() -> None:
    scenario = broken(policy=SHORT)
    scenario.slurm.reachable = False
    record = heal(scenario)
    assert record.status.outcome is Outcome.ESCALATED
    assert "Slurm cannot be asked" in record.status.reason
    assert not scenario.fleet.operations
    assert not scenario.fleet.evictions
    assert "everstep.io/pool" in scenario.fleet.nodes["gpu-1"].labels
    assert any("needs a person" in notice.title for notice in scenario.notifier.notices)


def test_a_provider_that_cannot_say_is_not_asked_twice_and_a_person_is_called() -> None:
    scenario = broken(policy=SHORT)
    scenario.provider.reachable = False
    record = heal(scenario)
    assert record.status.outcome is Outcome.ESCALATED
    assert "nobody can tell whether the provider took machine gpu-1" in record.status.reason
    assert scenario.slurm.jobs[scenario.job_id].state == "RUNNING", "the job is brought back all the same"


def test_a_spare_that_fails_its_checks_is_put_aside_for_the_next_one() -> None:
    scenario = Scenario(spares=2)
    scenario.fleet.nodes["gpu-3"].lost_gpus = 1
    taken: Callable[[], bool] = lambda: bool(scenario.fleet.nodes["gpu-3"].annotations)  # noqa: E731
    scenario.fleet.break_gpu("gpu-1")
    record = heal(scenario)
    assert record.status.replacement is not None
    assert record.status.replacement.node == "gpu-4"
    assert not taken()


def test_a_spare_that_breaks_between_claim_and_check_never_gets_work() -> None:
    scenario = Scenario(spares=2)
    scenario.fleet.break_gpu("gpu-1")
    asyncio.run(scenario.run(60.0, until=lambda: bool(scenario.fleet.nodes["gpu-3"].annotations)))
    scenario.fleet.break_gpu("gpu-3")
    record = heal(scenario)
    assert record.status.rejected_spares == ("gpu-3",)
    assert record.status.outcome is Outcome.SUCCEEDED
    assert "gpu-3" not in scenario.slurm.nodes


def test_a_drain_that_slurmctld_lost_is_set_again() -> None:
    scenario = broken(job=JobSpec(save_seconds=20.0))
    asyncio.run(scenario.run(8.0))
    node = scenario.slurm.nodes["gpu-1"]
    assert node.drain
    node.drain, node.reason = False, ""
    asyncio.run(scenario.run(2.0))
    assert node.drain
    heal(scenario)


def test_a_person_who_uncordons_takes_the_node_back() -> None:
    scenario = broken(job=JobSpec(save_seconds=20.0))
    asyncio.run(scenario.run(8.0))
    scenario.fleet.nodes["gpu-1"].unschedulable = False
    record = heal(scenario)
    assert record.status.outcome is Outcome.CANCELLED
    assert "a person uncordoned node gpu-1" in record.status.reason
    assert not scenario.slurm.nodes["gpu-1"].drain
    assert scenario.slurm.jobs[scenario.job_id].state == "RUNNING"
    asyncio.run(scenario.run(60.0))
    assert len(scenario.records.records) == 1, "the same fault is not healed against a person's word"


def test_a_deleted_record_lets_the_job_go_first() -> None:
    scenario = broken(job=JobSpec(save_seconds=20.0))
    asyncio.run(scenario.run(8.0))
    name = scenario.record().name
    scenario.records.delete(name)
    asyncio.run(scenario.run(120.0, until=lambda: name not in scenario.records.records))
    assert name not in scenario.records.records
    assert not scenario.slurm.jobs[scenario.job_id].held


def test_the_second_fault_waits_for_its_turn_and_says_for_whom() -> None:
    scenario = Scenario(nodes=3, spares=2, job=JobSpec(save_seconds=20.0))
    scenario.fleet.break_gpu("gpu-1")
    asyncio.run(scenario.run(6.0))
    scenario.fleet.break_gpu("gpu-2")
    asyncio.run(scenario.run(2.0))
    waiting = scenario.record("gpu-2")
    assert waiting.status.stage is Stage.ADMITTED or waiting.status.stage is Stage.PENDING or waiting.status.admitted_at
    first = heal(scenario, node="gpu-1")
    second = heal(scenario, node="gpu-2")
    assert {first.status.outcome, second.status.outcome} == {Outcome.SUCCEEDED}


@pytest.mark.parametrize("save_seconds", [0.1, 2.0, 20.0])
def test_a_machine_that_came_back_for_another_incident_may_run_the_job_again(save_seconds: float) -> None:
    """Both nodes of the job break; the first machine, repaired, takes the second one's place.

    However soon the first replacement serves, the job is not started on the second faulty node in between.
    """
    scenario = Scenario(job=JobSpec(save_seconds=save_seconds))
    scenario.fleet.break_gpu("gpu-1")
    scenario.fleet.break_gpu("gpu-2")
    second = heal(scenario, node="gpu-2")
    first = heal(scenario, node="gpu-1")
    assert first.status.replacement is not None
    assert second.status.replacement is not None
    assert {first.status.replacement.node, second.status.replacement.node} == {"gpu-3", "gpu-1"}
    job = scenario.slurm.jobs[scenario.job_id]
    assert (job.state, job.restarts) == ("RUNNING", 1)
    assert not scenario.slurm.nodes["gpu-1"].drain


def test_a_job_does_not_wait_for_ever_for_the_isolation_of_its_other_node() -> None:
    """The breaker, which only a person closes, keeps the second incident waiting; the job runs on all the same."""
    scenario = Scenario(policy=Policy(breaker_starts=1))
    scenario.fleet.break_gpu("gpu-1")
    scenario.fleet.break_gpu("gpu-2")
    asyncio.run(scenario.run(40.0))
    assert "gpu-2, which fails too" in scenario.record("gpu-1").status.reason
    first = heal(scenario, node="gpu-1")
    assert first.status.outcome is Outcome.SUCCEEDED
    assert scenario.record("gpu-2").status.stage is Stage.PENDING
    job = scenario.slurm.jobs[scenario.job_id]
    assert (job.state, job.restarts) == ("RUNNING", 1)


def test_a_second_fault_on_the_node_joins_the_open_incident() -> None:
    scenario = broken(job=JobSpec(save_seconds=20.0))
    asyncio.run(scenario.run(6.0))
    scenario.fleet.break_gpu("gpu-1", code="48")
    record = heal(scenario)
    assert len(scenario.records.records) == 1
    assert len(record.status.merged_faults) == 1


def test_half_of_the_fleet_falling_silent_is_not_taken_for_dead_nodes() -> None:
    scenario = Scenario(nodes=4)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        scenario.fleet.power_off(name)
    asyncio.run(scenario.run(300.0))
    assert all(r.status.stage is Stage.PENDING for r in scenario.records.records.values())
    assert not scenario.fleet.operations


def test_a_notice_that_cannot_be_delivered_is_on_record_and_stops_nothing() -> None:
    scenario = broken()
    scenario.notifier.working = False
    record = heal(scenario)
    assert record.status.outcome is Outcome.SUCCEEDED
    notified = record.status.step(StepName.NOTIFIED)
    assert notified is not None
    assert "the mail server does not answer" in notified.reason
