"""What a SlurmCluster says about itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from everstep.api.slurm_cluster import SlurmClusterStatus
from everstep.apps.slurm_operator.status import Part, Seen, complaint, status

T0, T1 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
WELL = Part(True, "")
SEEN = Seen(7, "", WELL, WELL, WELL, 2, 2, 0, (), "", "10.0.0.1:30022")


def conditions(said: SlurmClusterStatus) -> dict[str, str]:
    return {condition.type: condition.status for condition in said.conditions}


def test_all_is_well() -> None:
    said = status(SEEN, SlurmClusterStatus(), T0)
    assert set(conditions(said).values()) == {"True"}
    assert said.issues == []
    assert (said.observed_generation, said.login.endpoint, said.node_summary) == (7, "10.0.0.1:30022", "2/2")


def test_a_missing_node_is_an_issue_but_the_cluster_serves() -> None:
    said = status(replace(SEEN, ready_nodes=1, not_ready=("gpu-2",)), SlurmClusterStatus(), T0)
    assert conditions(said)["Ready"] == "True"
    assert conditions(said)["NodesReady"] == "False"
    assert [issue.message for issue in said.issues] == ["1 of 2 nodes are in Slurm; waiting for gpu-2"]


def test_without_any_node_it_does_not_serve() -> None:
    said = status(replace(SEEN, desired_nodes=0, ready_nodes=0), SlurmClusterStatus(), T0)
    assert conditions(said)["Ready"] == "False"
    assert said.message == "no Kubernetes node matches the pools' selectors"


def test_a_refused_spec_is_said_even_while_the_old_cluster_runs() -> None:
    said = status(replace(SEEN, problem="config.slurm sets KillWait"), SlurmClusterStatus(), T0)
    assert (conditions(said)["ConfigApplied"], conditions(said)["ControllerReady"]) == ("False", "True")
    assert said.message == "config.slurm sets KillWait"


def test_times_move_only_with_what_changed() -> None:
    first = status(replace(SEEN, login=Part(False, "starting")), SlurmClusterStatus(), T0)
    second = status(SEEN, first, T1)
    moved = {c.type for c in second.conditions if c.last_transition_time == T1}
    assert moved == {"Ready", "LoginReady"}
    third = status(replace(SEEN, login=Part(False, "starting")), first, T1)
    assert [issue.since for issue in third.issues] == [T0]


def test_workers_of_an_earlier_version_are_an_issue_and_nothing_worse() -> None:
    said = status(replace(SEEN, outdated_nodes=2), SlurmClusterStatus(), T0)
    assert conditions(said)["Ready"] == "True"
    assert [issue.code for issue in said.issues] == ["WorkersUpdated"]


def test_a_daemons_complaint_is_its_last_errors() -> None:
    log = """slurmctld: debug:  Log file re-opened
[2026-01-01T00:00:00.000] error: an old one
slurmctld: error: _parse_next_key: Parsing error at unrecognized key: Foo
slurmctld: error: _parse_next_key: Parsing error at unrecognized key: Foo
slurmctld: fatal: Unable to process configuration file
"""
    assert complaint(log) == (
        "error: _parse_next_key: Parsing error at unrecognized key: Foo; fatal: Unable to process configuration file"
    )
    assert complaint("slurmctld: Running as primary controller") == ""
    assert len(complaint("fatal: " + "x" * 9999)) == 400
