"""Which incidents are opened, under which name, and which are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.cluster_state import POOL_LABEL, NodeView
from everstep.core.health import Fault, FaultClass, FirstAction, NodeReport, Severity, Verdict
from everstep.core.incidents import incident_name, openings, suspicious
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation, Stage, Status
from everstep.core.silence import mass_silence

NOW = 1_000.0
POLICY = Policy()
NODE = NodeView("gpu-1", "uid-1", "1", True, False, "boot-1", labels={POOL_LABEL: "train"}, gpus_capacity=2)
FAULT = Fault(
    "xid:79@serial", "xid", "79", FaultClass.HARDWARE, Severity.CRITICAL, FirstAction.REBOOT_NODE, "XID 79",
    first_seen=NOW, boot_id="boot-1",
)  # fmt: skip


def report(*faults: Fault, heartbeat: float | None = NOW) -> NodeReport:
    return NodeReport("gpu-1", Verdict.FAULTY if faults else Verdict.HEALTHY, "boot-1", faults, heartbeat=heartbeat)


def opened(node: NodeView, said: NodeReport, *known: Remediation, now: float = NOW) -> list[str]:
    return [o.name for o in openings(now, [node], {node.name: said}, known, POLICY)]


def test_a_serious_fault_opens_one_incident_whose_name_never_changes() -> None:
    (name,) = opened(NODE, report(FAULT))
    assert name == incident_name(NODE, FAULT)
    assert opened(NODE, report(replace(FAULT, count=7, last_seen=NOW + 9))) == [name]
    assert name.startswith("gpu-1-xid-79-")


@pytest.mark.parametrize("name", ["gpu-1", "a" * 63, "node.with.dots.and.a.very.long.name.indeed.example.com"])
def test_the_name_is_a_valid_label_value(name: str) -> None:
    made = incident_name(replace(NODE, name=name), replace(FAULT, code="some_long_CODE" * 5))
    assert len(made) <= 63
    assert made[0].isalnum()
    assert made == made.lower()


@pytest.mark.parametrize(
    "fault",
    [
        replace(FAULT, severity=Severity.WARNING),
        replace(FAULT, fault_class=FaultClass.APPLICATION),
        replace(FAULT, action=FirstAction.CALL_HUMAN),
        replace(FAULT, action=FirstAction.RESTART_JOB),
        replace(FAULT, boot_id="an earlier boot"),
    ],
)
def test_what_a_new_node_would_not_mend_opens_nothing(fault: Fault) -> None:
    assert not opened(NODE, report(fault))
    assert not suspicious(NOW, [NODE], {"gpu-1": report(fault)}, POLICY)


def test_only_nodes_in_service_are_healed() -> None:
    assert not opened(replace(NODE, labels={}), report(FAULT))


def test_silence_counts_only_when_kubernetes_and_the_agent_agree() -> None:
    old = report(heartbeat=NOW - POLICY.node_lost_grace - 1)
    assert len(opened(replace(NODE, ready=None), old)) == 1
    assert len(opened(replace(NODE, ready=False), old)) == 1
    assert not opened(NODE, old), "the kubelet answers"
    assert not opened(replace(NODE, ready=None), report(heartbeat=NOW - 5)), "the agent answers"
    assert not opened(replace(NODE, ready=None), report(heartbeat=None)), "there never was an agent"


def test_a_fault_that_an_incident_of_this_boot_knew_is_not_opened_again() -> None:
    (opening,) = openings(NOW, [NODE], {"gpu-1": report(FAULT)}, [], POLICY)
    closed = Remediation(opening.name, "u", "1", NOW, opening.spec, Status(stage=Stage.RESOLVED, resolved_at=NOW + 10))
    assert not opened(NODE, report(FAULT), closed)
    echo = replace(FAULT, key="xid:154@serial", code="154", first_seen=NOW + 5)
    assert not opened(NODE, report(FAULT, echo), closed), "it was there before the incident ended"
    later = replace(FAULT, key="xid:48@serial", code="48", first_seen=NOW + 60)
    assert len(opened(NODE, report(FAULT, later), closed)) == 1
    reborn = replace(NODE, boot_id="boot-2")
    assert len(opened(reborn, report(replace(FAULT, boot_id="boot-2")), closed)) == 1


def test_an_open_incident_takes_further_faults() -> None:
    (opening,) = openings(NOW, [NODE], {"gpu-1": report(FAULT)}, [], POLICY)
    active = Remediation(opening.name, "u", "1", NOW, opening.spec, Status(stage=Stage.ISOLATING))
    assert not opened(NODE, report(FAULT, replace(FAULT, key="xid:48@serial", code="48")), active)


def test_silence_of_most_nodes_is_reported_as_such() -> None:
    nodes = [replace(NODE, name=f"n{i}", ready=None if i < 2 else True) for i in range(3)]
    reports = {n.name: report(heartbeat=NOW - 100) for n in nodes}
    assert mass_silence(NOW, nodes, reports, POLICY) == ("n0", "n1")
    assert mass_silence(NOW, nodes[1:], reports, POLICY) == ()
