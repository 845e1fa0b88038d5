"""The heals that are swept, and what must be true at their end wherever the controller was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from everstep.core.cluster_state import OPT_OUT_LABEL
from everstep.core.policy import Mode, Policy
from everstep.core.remediation_status import Outcome, Remediation, StepName, order_violations
from everstep.testing.crashes import CrashPlan, Side
from everstep.testing.scenario import Scenario
from everstep.testing.slurm_training import JobSpec

LIMIT = 900.0  # virtual seconds; every heal here ends far sooner


@dataclass(frozen=True, slots=True)
class Heal:
    """One kind of heal.

    Attributes:
        build: the fleet before the fault.
        strike: the fault.
        outcome: how the incident must end.
        restarts: how often the job must have been restarted.
        steps: steps that the record must have.
        retired: how often the faulty machine must have been handed over.
    """

    build: Callable[[CrashPlan], Scenario]
    strike: Callable[[Scenario], None]
    outcome: Outcome
    restarts: int = 1
    steps: frozenset[StepName] = frozenset(StepName)
    retired: int = 1


def _gpu(scenario: Scenario) -> None:
    scenario.fleet.break_gpu("gpu-1")


def _power(scenario: Scenario) -> None:
    scenario.fleet.power_off("gpu-1")


def _opt_out(plan: CrashPlan) -> Scenario:
    scenario = Scenario(plan=plan)
    scenario.fleet.add_pod("precious", "gpu-1", labels={OPT_OUT_LABEL: "true"})
    return scenario


def _second_pod(plan: CrashPlan) -> Scenario:
    scenario = Scenario(plan=plan)
    scenario.fleet.add_pod("other", "gpu-1")
    return scenario


def _no_spare(plan: CrashPlan) -> Scenario:
    scenario = Scenario(plan=plan, spares=0)
    scenario.fleet.repair_seconds = 12.0
    return scenario


_LEFT_ALONE = frozenset(
    {
        StepName.DETECTED, StepName.NOTIFIED, StepName.ISOLATED, StepName.SIGNALLED, StepName.CHECKPOINTED,
        StepName.REQUEUED, StepName.OPT_OUT_CHECKED,
    }
)  # fmt: skip

HEALS: dict[str, Heal] = {
    "gpu dies": Heal(_second_pod, _gpu, Outcome.SUCCEEDED),
    "gpu dies, Slurm 22.05": Heal(lambda plan: Scenario(plan=plan, version="22.05.8"), _gpu, Outcome.SUCCEEDED),
    "node loses power": Heal(
        lambda plan: Scenario(plan=plan, job=JobSpec(save_every=10)), _power, Outcome.SUCCEEDED
    ),
    "opt-out": Heal(_opt_out, _gpu, Outcome.LEFT_ALONE, steps=_LEFT_ALONE, retired=0),
    "no spare": Heal(_no_spare, _gpu, Outcome.SUCCEEDED),
    "dry run": Heal(
        lambda plan: Scenario(plan=plan, policy=Policy(mode=Mode.DRY_RUN)),
        _gpu, Outcome.DRY_RUN, restarts=0, steps=frozenset({StepName.DETECTED}), retired=0,
    ),
}  # fmt: skip


def run(heal: Heal, at: int = 0, side: Side = Side.BEFORE, delay: float = 0.0) -> Scenario:
    """The whole heal with one crash (``at`` 0: none)."""
    scenario = heal.build(CrashPlan(at, side, delay))
    heal.strike(scenario)

    def over() -> bool:
        found = scenario.records.records.values()
        return any(r.status.resolved and any(k == "resolved" for k, _ in r.status.told) for r in found)

    asyncio.run(scenario.run(LIMIT, until=over))
    return scenario


def faults_of(scenario: Scenario, heal: Heal) -> list[str]:
    """Everything that is wrong at the end, in sentences."""
    wrong = list(scenario.fleet.violations)
    records = list(scenario.records.records.values())
    if len(records) != 1:
        return [*wrong, f"{len(records)} incidents were opened"]
    record = records[0]
    status = record.status
    if status.outcome is not heal.outcome:
        wrong.append(f"ended as {status.outcome}: {status.reason}")
    missing = heal.steps - {step.name for step in status.steps}
    if missing and status.outcome is heal.outcome:
        wrong.append(f"steps {sorted(missing)} are missing")
    wrong += order_violations(status.steps)
    wrong += _fleet_faults(scenario, heal, record)
    job = scenario.slurm.snapshot().job(scenario.job_id)
    if job is None:
        wrong.append("the job is lost")
    else:
        if job.restarts != heal.restarts:
            wrong.append(f"the job was restarted {job.restarts} times")
        if job.held:
            wrong.append("the job is left held")
        if heal.outcome is Outcome.SUCCEEDED and (job.state != "RUNNING"):
            wrong.append(f"the job is {job.state}")
    return wrong


def _fleet_faults(scenario: Scenario, heal: Heal, record: Remediation) -> list[str]:
    wrong = []
    retired = [op for op in scenario.fleet.operations.values() if op.machine == "gpu-1"]
    if len(retired) != heal.retired:
        wrong.append(f"the machine was handed over {len(retired)} times")
    if scenario.fleet.claims(record.name):
        wrong.append(f"spares {scenario.fleet.claims(record.name)} are still claimed")
    serving = len(scenario.fleet.in_service())
    if serving != scenario.nodes:
        wrong.append(f"{serving} nodes are in service instead of {scenario.nodes}")
    return wrong


def without_noise(policy: Policy) -> Policy:
    """The same policy with short deadlines, for heals that must fail."""
    return replace(policy, isolate_deadline=60.0, retire_deadline=60.0, spare_deadline=120.0)
