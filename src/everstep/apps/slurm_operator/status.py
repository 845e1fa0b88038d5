"""What a SlurmCluster's status says, computed from what is seen. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from everstep.api.meta import Condition
from everstep.api.slurm_cluster import Issue, LoginStatus, NodesStatus, SlurmClusterStatus

_COMPLAINT = re.compile(r"\b((?:error|fatal): .*)")
_COMPLAINTS = 3  # the last of them: what was wrong, then that it could not go on
_COMPLAINT_LENGTH = 400


@dataclass(frozen=True, slots=True)
class Part:
    """How far one part is; ``detail`` says what is missing, for people."""

    ready: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What the operator sees of one cluster.

    Attributes:
        problem: why the object could not be turned into a cluster; "" when it could.
        not_ready: names of Kubernetes nodes whose slurmd has not registered.
        no_room: the scheduler's words on a slurmd that it finds no room for; "" when each has its node.
    """

    generation: int
    problem: str
    controller: Part
    login: Part
    gateway: Part
    desired_nodes: int
    ready_nodes: int
    outdated_nodes: int
    not_ready: tuple[str, ...]
    no_room: str
    endpoint: str


def status(seen: Seen, before: SlurmClusterStatus, now: datetime) -> SlurmClusterStatus:
    """The new status; times of what did not change are kept."""
    applied = _condition("ConfigApplied", not seen.problem, "Refused", seen.problem or "as the spec asks")
    controller = _part("ControllerReady", seen.controller, "slurmctld answers")
    login = _part("LoginReady", seen.login, f"SSH at {seen.endpoint}" if seen.endpoint else "SSH answers")
    gateway = _part("GatewayReady", seen.gateway, "the gateway serves the controller")
    nodes = _nodes(seen)
    workers = _workers(seen)
    wrong = [c for c in (applied, controller, login, gateway) if c.status != "True"]
    if not wrong and not seen.ready_nodes:
        wrong = [nodes]
    ready = _condition("Ready", not wrong, "NotReady", wrong[0].message if wrong else _summary(seen))
    conditions = [ready, applied, controller, login, gateway, nodes, workers]
    return SlurmClusterStatus(
        observed_generation=seen.generation,
        login=LoginStatus(seen.endpoint),
        nodes=NodesStatus(seen.desired_nodes, seen.ready_nodes),
        node_summary=f"{seen.ready_nodes}/{seen.desired_nodes}",
        message=ready.message,
        conditions=[_dated(c, before.conditions, now) for c in conditions],
        issues=_issues([c for c in conditions[1:] if c.status != "True"], before, now),
    )


def complaint(log: str) -> str:
    """The errors at the end of a daemon's log, on one line: ``error: Parsing error at unrecognized key: Foo``."""
    found = [match[1].strip() for line in log.splitlines() if (match := _COMPLAINT.search(line))]
    return "; ".join(dict.fromkeys(found[-_COMPLAINTS:]))[:_COMPLAINT_LENGTH]


def _summary(seen: Seen) -> str:
    waiting = f"; waiting for {', '.join(seen.not_ready[:5])}" if seen.not_ready else ""
    no_room = f"; a slurmd finds no room: {seen.no_room.rstrip('.')}" if seen.no_room else ""
    return f"{seen.ready_nodes} of {seen.desired_nodes} nodes are in Slurm{waiting}{no_room}"


def _nodes(seen: Seen) -> Condition:
    if not seen.desired_nodes:
        return _condition("NodesReady", False, "NoNodes", "no Kubernetes node matches the pools' selectors")
    return _condition("NodesReady", seen.ready_nodes >= seen.desired_nodes, "Waiting", _summary(seen))


def _workers(seen: Seen) -> Condition:
    old = f"{seen.outdated_nodes} workers run an earlier version; delete their pods when their jobs may be requeued"
    return _condition("WorkersUpdated", not seen.outdated_nodes, "Outdated", old if seen.outdated_nodes else "all")


def _part(kind: str, part: Part, well: str) -> Condition:
    return _condition(kind, part.ready, "Waiting", well if part.ready else part.detail)


def _condition(kind: str, true: bool, reason: str, message: str) -> Condition:
    return Condition(kind, "True" if true else "False", "AsWanted" if true else reason, message)


def _dated(new: Condition, before: list[Condition], now: datetime) -> Condition:
    old = next((c for c in before if c.type == new.type), None)
    same = old is not None and old.status == new.status
    new.last_transition_time = old.last_transition_time if old is not None and same else now
    return new


def _issues(wrong: list[Condition], before: SlurmClusterStatus, now: datetime) -> list[Issue]:
    since = {issue.code: issue.since for issue in before.issues}
    return [Issue(c.type, c.message, since.get(c.type) or now) for c in wrong]
