"""Incidents and policy between the core and the wire: nothing is lost on the way, nothing unknown is made up."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.adapters.kube.mirror import to_api, to_core
from everstep.adapters.kube.records import (
    PolicyObject,
    RemediationObject,
    new_body,
    policy_of,
    remediation_of,
    status_body,
)
from everstep.api import meta, node_health, remediation
from everstep.core import health, remediation_status
from everstep.core.correlation.fleet import FleetRules
from everstep.core.errors import Unreadable
from everstep.core.health import FaultClass
from everstep.core.policy import ConditionRule, DrainRule, Mode, Policy
from everstep.core.remediation_status import Remediation, Spec, Status

PAIRS = [
    (health.Fault, meta.Fault, set()),
    (health.Gpu, node_health.Gpu, set()),
    (remediation_status.Spec, remediation.RemediationSpec, {"title"}),
    (remediation_status.Step, remediation.Step, set()),
    (remediation_status.JobRecord, remediation.JobRecord, set()),
    (remediation_status.Replacement, remediation.Replacement, set()),
    (remediation_status.OperationMark, remediation.OperationMark, set()),
    (remediation_status.Durations, remediation.Durations, set()),
    (
        remediation_status.Status,
        remediation.RemediationStatus,
        {"conditions", "job_list"},
    ),
]


@pytest.mark.parametrize(("core", "api", "extra"), PAIRS, ids=lambda each: getattr(each, "__name__", ""))
def test_api_and_core_have_the_same_fields(core: type, api: type[msgspec.Struct], extra: set[str]) -> None:
    assert {field.name for field in dataclasses.fields(core)} == set(api.__struct_fields__) - extra


# Unix seconds as a clock gives them; 0.0 is how the core writes "never".
moments = st.one_of(st.just(0.0), st.floats(1e9, 4e9, allow_nan=False)).map(lambda at: round(at, 6))
given_moments = st.floats(1e9, 4e9, allow_nan=False).map(lambda at: round(at, 6))
texts = st.text(max_size=20)
steps = st.lists(
    st.builds(
        remediation_status.Step, name=st.sampled_from(remediation_status.StepName), at=given_moments, reason=texts
    ),
    unique_by=lambda step: step.name,
    max_size=4,
).map(tuple)
optional_moments = st.none() | given_moments
jobs = st.lists(
    st.builds(
        remediation_status.JobRecord,
        id=texts, cluster=texts, user=texts, name=texts,
        nodes=st.lists(texts, max_size=2).map(tuple),
        phase_since=moments, asked_at=optional_moments, signalled_at=optional_moments, stopped_at=optional_moments,
        released_at=optional_moments, nudged_at=optional_moments, started_at=optional_moments,
        resumed_at=optional_moments, saved_at=optional_moments,
        gpu_seconds_lost=st.none() | st.floats(0, 1e9), save_seconds=st.none() | st.floats(0, 1e6),
        load_seconds=st.none() | st.floats(0, 1e6),
    ),
    max_size=2,
).map(tuple)  # fmt: skip
faults = st.lists(
    st.builds(health.Fault, first_seen=moments, last_seen=moments, key=texts, kind=texts, code=texts, reason=texts),
    max_size=2,
).map(tuple)
statuses = st.builds(
    Status,
    since=moments, admitted_at=optional_moments, resolved_at=optional_moments, steps=steps, jobs=jobs,
    replacement=st.none() | st.builds(
        remediation_status.Replacement,
        since=given_moments, validated_at=optional_moments, in_service_at=optional_moments,
    ),
    operation=st.none() | st.builds(
        remediation_status.OperationMark, marked_at=given_moments, acknowledged_at=optional_moments
    ),
    told=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
)  # fmt: skip
specs = st.builds(Spec, faults=faults)


@settings(max_examples=200, deadline=None)
@given(specs, statuses)
def test_what_is_written_is_what_is_read(spec: Spec, status: Status) -> None:
    incident = Remediation("r", "u", "1", 0.0, spec)
    body = json.loads(msgspec.json.encode(status_body(incident, status)))
    found = msgspec.json.decode(msgspec.json.encode(body), type=RemediationObject)
    read = remediation_of(found)
    assert (read.spec, read.status) == (spec, status)


def test_step_times_keep_microseconds() -> None:
    step = remediation_status.Step(remediation_status.StepName.DETECTED, 1796000000.123456, "seen")
    wire = to_api(step, remediation.Step)
    assert msgspec.json.decode(msgspec.json.encode(wire))["at"].endswith(".123456Z")
    assert to_core(wire, remediation_status.Step) == step


def test_new_incident_has_no_status_and_is_pending() -> None:
    body = new_body("r", Spec("n", "u", "b", "p", "m", 2, ()))
    found = msgspec.json.decode(msgspec.json.encode(body), type=RemediationObject)
    assert remediation_of(found).status == Status()


@pytest.mark.parametrize(
    "status",
    [
        {"stage": "FromTheFuture"},
        {"stage": "Pending", "since": "yesterday"},
        {"reason": "no stage at all"},
        {"stage": "Pending", "steps": [{"name": "exploded", "at": "2026-01-01T00:00:00Z", "reason": ""}]},
        [],
    ],
)
def test_status_that_cannot_be_understood_is_never_taken_for_a_new_incident(status: object) -> None:
    body = {**new_body("r", Spec("n", "u", "b", "p", "m", 2, ())), "status": status}
    found = msgspec.json.decode(msgspec.json.encode(body), type=RemediationObject)
    with pytest.raises(Unreadable):
        remediation_of(found)


def policy_object(spec: object) -> PolicyObject:
    body = {"metadata": {"name": "default"}, "spec": spec}
    return msgspec.json.decode(json.dumps(body), type=PolicyObject)


def test_empty_policy_equals_the_cores_defaults_in_dry_run() -> None:
    found = policy_of(policy_object({}))
    defaults = Policy(mode=Mode.DRY_RUN)
    assert dataclasses.replace(found, opt_out=defaults.opt_out) == defaults
    assert set(defaults.opt_out) < set(found.opt_out)  # and what other controllers honour


def test_policy_fields_reach_the_core() -> None:
    spec = {
        "mode": "Enforce",
        "graceSeconds": 60,
        "budget": {"maxConcurrent": 3},
        "breaker": {"maxStarts": 5, "windowSeconds": 60},
        "optOut": {"keys": ["a=b"]},
        "actions": [{"faultClass": "hardware", "action": "None"}, {"faultClass": "fabric", "action": "Replace"}],
        "deadlines": {"spareSeconds": 7},
    }
    found = policy_of(policy_object(spec))
    assert (found.mode, found.grace, found.budget) == (Mode.ENFORCE, 60.0, 3)
    assert (found.breaker_starts, found.breaker_window, found.spare_deadline) == (5, 60.0, 7.0)
    assert found.opt_out == ("a=b",)
    assert found.replace == {FaultClass.FABRIC}


def test_policy_that_cannot_be_understood_is_not_replaced_by_defaults() -> None:
    with pytest.raises(Unreadable, match="kubectl edit"):
        policy_of(policy_object({"mode": "PleaseDo"}))


def test_rules_for_the_evidence_of_others() -> None:
    spec = {
        "slurmDrains": [{"reason": "^NHC: .*GPU", "action": "Replace"}, {"reason": "GPU"}],
        "nodeConditions": [{"type": "GpuHealthy", "status": "False", "action": "Replace", "forSeconds": 5}],
        "fleet": {"commonNodes": 9, "jobPercent": 75},
    }
    found = policy_of(policy_object(spec))
    assert found.slurm_drains == (DrainRule("^NHC: .*GPU", True), DrainRule("GPU", False))
    assert found.node_conditions == (ConditionRule("GpuHealthy", "False", FaultClass.HARDWARE, True, 5.0),)
    assert found.fleet == FleetRules(common_nodes=9, job_share=0.75)


@pytest.mark.parametrize(
    "spec",
    [
        {"slurmDrains": [{"reason": "(", "action": "None"}]},
        {"nodeConditions": [{"type": "EverstepHealthy", "status": "False"}]},
        {"nodeConditions": [{"type": "EverstepSlurmDrained", "status": "True"}]},
    ],
)
def test_a_rule_that_cannot_be_meant_stops_the_policy(spec: object) -> None:
    with pytest.raises(Unreadable):
        policy_of(policy_object(spec))
