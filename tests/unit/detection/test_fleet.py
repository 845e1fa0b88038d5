"""What is seen across nodes: a job that breaks everywhere, a file server that is gone, and what neither of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.correlation.fleet import Blame, FleetRules, NodeSighting, excused, incidents
from everstep.core.health import FaultClass

APPLICATION, SUSPECT, HARDWARE = FaultClass.APPLICATION, FaultClass.SUSPECT, FaultClass.HARDWARE


def seen(
    node: int, code: str, at: float, kind: FaultClass = APPLICATION, job: str = "7", subject: str = ""
) -> NodeSighting:
    return NodeSighting(f"gpu-{node}", code, kind, at, job, subject)


def test_the_same_code_on_the_nodes_of_one_job_is_the_jobs_fault() -> None:
    sightings = [seen(node, "xid:31", 100.0 + node) for node in range(8)]
    (incident,) = incidents(sightings, {"7": 8})
    assert (incident.blame, incident.about, len(incident.nodes)) == (Blame.JOB, "7", 8)
    assert incident.reason == "xid:31 on 8 nodes of job 7 at one moment: the job's own fault"
    assert all(excused([incident], item) == incident for item in sightings)
    assert excused([incident], seen(1, "xid:13", 101.0)) is None
    assert excused([incident], seen(1, "xid:31", 4000.0)) is None


@pytest.mark.parametrize(
    ("sightings", "sizes"),
    [
        ([seen(1, "xid:31", 100.0)], {"7": 1}),  # one node is no moment of the fleet
        ([seen(n, "xid:31", 100.0) for n in range(3)], {"7": 8}),  # the minority of its nodes
        ([seen(n, "xid:31", 100.0 + n * 300) for n in range(8)], {"7": 8}),  # not at one moment
        ([seen(n, "xid:31", 100.0, job=str(n)) for n in range(8)], {str(n): 1 for n in range(8)}),  # not one job
        ([seen(n, f"xid:{n}", 100.0) for n in range(8)], {"7": 8}),  # not one code
        ([seen(n, "xid:31", 100.0) for n in range(8)], {}),  # a job whose size nobody knows
        ([seen(1, "xid:31", 100.0 + n) for n in range(30)], {"7": 2}),  # one node, many times
    ],
)
def test_what_is_no_fault_of_a_job(sightings: list[NodeSighting], sizes: dict[str, int]) -> None:
    assert incidents(sightings, sizes) == ()


def test_a_gpu_that_fell_off_is_its_nodes_matter_in_any_job() -> None:
    assert incidents([seen(n, "xid:79", 100.0, HARDWARE) for n in range(3)], {"7": 3}) == ()


def test_hardware_codes_on_many_nodes_at_once_have_a_common_cause() -> None:
    (incident,) = incidents([seen(n, "xid:79", 100.0 + n, HARDWARE, job=str(n)) for n in range(6)], {})
    assert incident.blame is Blame.COMMON
    assert "no single node" in incident.reason


def test_nodes_that_lose_one_file_server_are_one_storage_incident() -> None:
    lost = [seen(n, "host:file_server_lost", 100.0 + 20 * n, FaultClass.STORAGE, "", "10.0.0.9") for n in range(5)]
    (incident,) = incidents(lost, {})
    assert (incident.blame, incident.about, len(incident.nodes)) == (Blame.STORAGE, "10.0.0.9", 5)
    assert excused([incident], lost[4]) == incident
    assert incidents(lost[:2], {}) == ()
    apart = [seen(n, "host:file_server_lost", 100.0, FaultClass.STORAGE, "", f"10.0.0.{n}") for n in range(5)]
    assert incidents(apart, {}) == ()


def test_a_disk_that_fails_in_one_node_is_no_incident_of_storage() -> None:
    lost = [seen(n, "host:readonly_remount", 100.0, FaultClass.STORAGE, "", "md0") for n in range(5)]
    assert incidents(lost, {}) == ()


def test_rules_can_be_set() -> None:
    sightings = [seen(n, "xid:31", 100.0) for n in range(3)]
    assert incidents(sightings, {"7": 8}, FleetRules(job_share=0.3))[0].nodes == ("gpu-0", "gpu-1", "gpu-2")


@given(
    st.lists(
        st.builds(
            seen,
            st.integers(0, 9),
            st.sampled_from(["xid:31", "xid:79", "xid:45", "host:file_server_lost"]),
            st.floats(0, 1000),
            st.sampled_from(list(FaultClass)),
            st.sampled_from(["", "7", "8"]),
            st.sampled_from(["", "fs"]),
        ),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_reports_does_not_matter(sightings: list[NodeSighting], random: object) -> None:
    shuffled = list(sightings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    found = incidents(sightings, {"7": 4, "8": 2})
    assert incidents(shuffled, {"7": 4, "8": 2}) == found
    for incident in found:
        assert len(set(incident.nodes)) == len(incident.nodes) >= 2
        assert incident.reason
