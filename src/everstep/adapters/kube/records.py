"""Remediation and RemediationPolicy objects on the wire, and what they are for the core."""

from __future__ import annotations

import re

import msgspec

from everstep.adapters.kube.mirror import moment, to_api, to_core
from everstep.adapters.kube.views import seconds
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.meta import API_VERSION, Condition
from everstep.api.remediation import RemediationSpec, RemediationStatus
from everstep.api.remediation_policy import ActionName, RemediationPolicySpec
from everstep.api.remediation_policy import Mode as WireMode
from everstep.core.conditions import Condition as CoreCondition
from everstep.core.conditions import conditions
from everstep.core.correlation.fleet import FleetRules
from everstep.core.errors import Unreadable
from everstep.core.foreign import DRAINED
from everstep.core.node_verdict import HEALTHY
from everstep.core.policy import ConditionRule, DrainRule, Mode, Policy
from everstep.core.remediation_status import Remediation, Spec, Status

FINALIZER = "everstep.io/release-jobs"


class RecordMeta(ObjectMeta, frozen=True, rename="camel", omit_defaults=True):
    finalizers: list[str] = msgspec.field(default_factory=list)


class RemediationObject(msgspec.Struct, frozen=True):
    """Spec and status are decoded apart from the rest, so that what cannot be understood still has a name."""

    metadata: RecordMeta
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")


class PolicyObject(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"null")


_spec = msgspec.json.Decoder(RemediationSpec)
_status = msgspec.json.Decoder(RemediationStatus)
_policy = msgspec.json.Decoder(RemediationPolicySpec)


def remediation_of(found: RemediationObject) -> Remediation:
    """An object that has no status yet is a new incident; one whose status cannot be understood raises Unreadable."""
    meta = found.metadata
    try:
        spec = to_core(_spec.decode(found.spec), Spec)
        status = Status() if _absent(found.status) else to_core(_status.decode(found.status), Status)
    except (msgspec.DecodeError, TypeError, ValueError) as why:
        raise Unreadable(f"{why}; correct it with kubectl edit, or delete the object to give the incident up") from why
    return Remediation(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        created=seconds(meta.creation_timestamp),
        spec=spec,
        status=status,
        deleting=meta.deletion_timestamp is not None,
    )


def new_body(name: str, spec: Spec) -> dict[str, object]:
    """The object that opens an incident."""
    first = spec.faults[0] if spec.faults else None
    title = "" if first is None else f"{first.kind}:{first.code}"
    if first is not None and first.gpu_index is not None:
        title += f" gpu {first.gpu_index}"
    return {
        "apiVersion": API_VERSION,
        "kind": "Remediation",
        "metadata": {"name": name, "finalizers": [FINALIZER]},
        "spec": to_api(spec, RemediationSpec, title=title),
    }


def status_body(remediation: Remediation, status: Status) -> dict[str, object]:
    """The whole object for its status subresource, under the version that was read."""
    wire = to_api(
        status,
        RemediationStatus,
        job_list=",".join(job.id for job in status.jobs),
        conditions=[_condition(each) for each in conditions(status)],
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "Remediation",
        "metadata": {"name": remediation.name, "resourceVersion": remediation.resource_version},
        "spec": to_api(remediation.spec, RemediationSpec),
        "status": wire,
    }


def _condition(said: CoreCondition) -> Condition:
    return Condition(said.type, said.status, said.reason, said.message, moment(said.since) if said.since else None)


def policy_of(found: PolicyObject) -> Policy:
    """Raises Unreadable: a policy that cannot be understood must not fall back to another one."""
    try:
        wire = _policy.decode(found.spec)
    except msgspec.DecodeError as why:
        raise Unreadable(f"{why}; correct it with kubectl edit remediationpolicy {found.metadata.name}") from why
    for rule in wire.slurm_drains:
        try:
            re.compile(rule.reason)
        except re.error as why:
            raise Unreadable(f"slurmDrains: {rule.reason!r} is no regular expression ({why}); correct it") from why
    if wrong := next((rule.type for rule in wire.node_conditions if rule.type in (HEALTHY, DRAINED)), ""):
        raise Unreadable(
            f"nodeConditions: {wrong} is written by Everstep itself and is no evidence of others; remove it"
        )
    limits, breaker, fleet = wire.deadlines, wire.breaker, wire.fleet
    return Policy(
        name=found.metadata.name,
        mode=Mode.ENFORCE if wire.mode is WireMode.ENFORCE else Mode.DRY_RUN,
        replace=frozenset(rule.fault_class for rule in wire.actions if rule.action is ActionName.REPLACE),
        opt_out=tuple(wire.opt_out.keys),
        budget=wire.budget.max_concurrent,
        breaker_starts=breaker.max_starts,
        breaker_escalations=breaker.max_escalations,
        breaker_window=float(breaker.window_seconds),
        node_lost_grace=float(wire.node_lost_seconds),
        grace=float(wire.grace_seconds),
        isolate_deadline=float(limits.isolate_seconds),
        vacate_deadline=float(limits.vacate_seconds),
        validate_deadline=float(limits.validate_seconds),
        max_spares=wire.max_spares,
        spare_deadline=float(limits.spare_seconds),
        retire_deadline=float(limits.retire_seconds),
        resume_deadline=float(limits.resume_seconds),
        fleet=FleetRules(fleet.job_nodes, fleet.job_percent / 100, fleet.mount_nodes, fleet.common_nodes),
        slurm_drains=tuple(DrainRule(each.reason, each.action is ActionName.REPLACE) for each in wire.slurm_drains),
        node_conditions=tuple(
            ConditionRule(
                each.type, each.status, each.fault_class, each.action is ActionName.REPLACE, float(each.for_seconds)
            )
            for each in wire.node_conditions
        ),
    )


def _absent(raw: msgspec.Raw) -> bool:
    return bytes(raw) in (b"null", b"{}")
