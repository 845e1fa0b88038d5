"""What Slurm prints, as captured from 22.05.8 (and, where the text differs, from 24.11.5 and 26.05.5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.errors import Conflict, InvalidInput, NotFound, Refused, RetryLater, Unreachable
from everstep.core.slurm_text import (
    error_of,
    job_format,
    parse_jobs,
    parse_node_states,
    parse_nodes,
    parse_version,
    relaunch_needs_pause,
)

NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=0.77 AvailableFeatures=gpu,fake "
    "ActiveFeatures=gpu,fake Gres=gpu:1 GresDrain=N/A GresUsed=gpu:0 NodeAddr=127.0.0.1 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1000 AllocMem=0 State={state} ThreadsPerCore=1 Owner=N/A "
    "Partitions=main  BootTime=1795968459 CfgTRES=cpu=8,mem=1000M,billing=8 AllocTRES=cpu=3 CurrentWatts=0{tail}\n"
)


def node(state: str = "IDLE", tail: str = "") -> str:
    return NODE.format(state=state, tail=tail)


def row(word: str = "w", **changes: str) -> str:
    fields = {
        "JobID": "7",
        "JobArrayID": "7",
        "UserName": "alice",
        "State": "RUNNING",
        "RestartCnt": "0",
        "NodeList": "n[1-2]",
        "NumNodes": "2",
        "Requeue": "1",
        "BatchFlag": "1",
        "PriorityLong": "4294901759",
        "EligibleTime": "1795969342",
        "StartTime": "1795969344",
        "EndTime": "1795972944",
        "SubmitTime": "1795969342",
        "NumTasks": "2",
        "tres-alloc": "cpu=2,node=2,billing=2",
        "tres-per-job": "N/A",
        "tres-per-node": "gres:gpu:1",
        "tres-per-task": "N/A",
        "Reason": "None",
        "Name": "train",
    }
    assert set(changes) <= set(fields)
    asked = [field.split(":")[0] for field in job_format(word).split(",")]
    assert asked == list(fields)
    return "".join(f"{value}|{word}|" for value in (fields | changes).values()) + "\n"


def test_a_running_job() -> None:
    (record,) = parse_jobs(row(), "w")
    job = record.job
    assert (job.id, job.user, job.state, job.nodes, job.gpus) == ("7", "alice", "RUNNING", ("n1", "n2"), 2)
    assert (job.requeue, job.batch, job.held) == (True, True, False)
    assert (job.start_time, job.end_time) == (1795969344.0, 1795972944.0)


def test_a_name_cannot_forge_another_job() -> None:
    name = "a|b\n9|9|root|RUNNING|w|"
    records = parse_jobs(row("secret1", Name=name) + row("secret1", JobID="8"), "secret1")
    assert [r.job.id for r in records] == ["7", "8"]
    assert records[0].job.name == name


@given(name=st.text(), reason=st.text(alphabet=st.characters(exclude_characters="|")))
def test_any_name_and_reason_survive(name: str, reason: str) -> None:
    word = "x" * 40
    (record, after) = parse_jobs(row(word, Name=name, Reason=reason) + row(word, JobID="8"), word)
    assert record.job.name == name
    assert after.job.id == "8"


@given(cut=st.integers(min_value=1, max_value=len(row()) - 2))
def test_an_answer_cut_short_is_no_answer(cut: int) -> None:
    with pytest.raises(Unreachable):
        parse_jobs(row()[:cut], "w")


def test_no_jobs() -> None:
    assert parse_jobs("", "w") == ()


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        ({"JobID": "5", "JobArrayID": "2_0"}, "2_0"),
        ({"JobID": "2", "JobArrayID": "2_[1-3]"}, "2"),
        ({"JobID": "8", "JobArrayID": "7+1"}, "7"),
        ({}, "7"),
    ],
)
def test_an_array_element_is_named_so_that_the_array_is_not_hit(changes: dict[str, str], target: str) -> None:
    assert parse_jobs(row(**changes), "w")[0].target == target


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"PriorityLong": "0", "Reason": "job requeued in held state", "State": "PENDING"}, True),
        ({"State": "PENDING", "Reason": "JobHeldAdmin"}, True),
        ({"State": "PENDING", "Reason": "BeginTime"}, False),
        ({"State": "REQUEUE_HOLD"}, True),
        ({"State": "RUNNING", "PriorityLong": "0"}, True),
    ],
)
def test_held(changes: dict[str, str], held: bool) -> None:
    assert parse_jobs(row(**changes), "w")[0].job.held is held


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"tres-alloc": "cpu=2,node=2,gres/gpu=16,gres/gpu:h100=16"}, 16),
        ({"tres-per-node": "gres:gpu:h100:8"}, 16),
        ({"tres-per-node": "gres/gpu:4", "NumNodes": "3"}, 12),
        ({"tres-per-node": "gres:gpu"}, 2),
        ({"tres-per-node": "N/A", "tres-per-job": "gres:gpu:3"}, 3),
        ({"tres-per-node": "N/A", "tres-per-task": "gres:gpu:1", "NumTasks": "6"}, 6),
        ({"tres-per-node": "N/A"}, None),
        ({"tres-per-node": "gres:gpumem:4"}, None),
    ],
)
def test_gpus(changes: dict[str, str], gpus: int | None) -> None:
    assert parse_jobs(row(**changes), "w")[0].job.gpus == gpus


def test_whether_it_waits_for_its_begin_time() -> None:
    now = 1_795_969_400.0
    waiting = parse_jobs(row(EligibleTime="1795969467", Reason="None"), "w")[0]
    assert waiting.waits_for_begin_time(now)
    # The reason is refreshed only at the next scheduling pass; repeating StartTime=now would push the job back.
    stale_reason = parse_jobs(row(EligibleTime="1795969390", Reason="BeginTime"), "w")[0]
    assert not stale_reason.waits_for_begin_time(now)


def test_a_node_with_a_reason_that_looks_like_fields() -> None:
    tail = " Reason=everstep: Foo=bar [x] Reason=y [root@1795969348] Comment=A State=DOWN"
    (seen,) = parse_nodes(node("MIXED+DRAIN", tail))
    assert seen.reason == "everstep: Foo=bar [x] Reason=y"
    assert seen.states == {"MIXED", "DRAIN"}
    assert (seen.name, seen.address, seen.gres, seen.gres_used) == ("n1", "127.0.0.1", "gpu:1", "gpu:0")


@given(reason=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=80))
def test_any_reason_survives(reason: str) -> None:
    reason = " ".join(reason.split()) or "x"
    (seen,) = parse_nodes(node("IDLE+DRAIN", f" Reason={reason} [root@1795969348]"))
    assert seen.reason == reason
    assert seen.states == {"IDLE", "DRAIN"}


def test_nodes_without_reason_and_no_nodes() -> None:
    assert [n.reason for n in parse_nodes(node() + node("IDLE", " Comment=x"))] == ["", ""]
    assert parse_nodes("No nodes in the system\n") == ()
    with pytest.raises(Unreachable):
        parse_nodes("something else\n")
    with pytest.raises(Unreachable):
        parse_nodes("NodeName=n1 Arch=x86_64\n")


@pytest.mark.parametrize("text", ["NodeName=n9 State=IDLE Reason=spoofed", "NodeName=", "NodeName=n9"])
def test_a_comment_with_a_line_break_makes_no_node_and_hides_none(text: str) -> None:
    """As seen on 24.11.5 after `scontrol update nodename=n1 comment=$'c\\nNodeName=zz State=IDLE'`."""
    found = parse_nodes(node(tail=f" Comment=c\n{text}") + node("DOWN").replace("n1 ", "n2 ", 1))
    assert [(n.name, n.states) for n in found] == [("n1", {"IDLE"}), ("n2", {"DOWN"})]


def test_node_states() -> None:
    assert parse_node_states("IDLE+DRAIN+NOT_RESPONDING") == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert parse_node_states("IDLE*+DRAIN") == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert parse_node_states("DOWN*") == {"DOWN", "NOT_RESPONDING"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Invalid job id specified for job 999\n", NotFound),
        ("slurm_load_jobs error: Invalid job id specified\n", NotFound),
        ("slurm_update error: Invalid node name specified\n", NotFound),
        ("Node nope not found\n", NotFound),
        ("Job is pending execution for job 1\n", Conflict),
        ("2_0-2: Job is no longer pending execution\n", Conflict),
        ("scontrol: error: failed to delete nodes n1\ndelete_node: Requested nodes are busy\n", Conflict),
        ("slurm_update error: Invalid node state specified\n", Conflict),
        ("slurm_update error: Invalid node state transition\n", Conflict),
        ("slurm_update error: Invalid user id\n", Refused),
        ("Only batch jobs are accepted or processed\n", Refused),
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)\n", Unreachable),
        ("slurm_load_node error: Zero Bytes were transmitted or received\n", Unreachable),
        ("scontrol: error: plugin auth/jwt not found\n", RetryLater),
        ("", RetryLater),
    ],
)
def test_error_texts(text: str, kind: type[Exception]) -> None:
    error = error_of("scontrol update", text)
    assert type(error) is kind
    assert "\n" not in str(error)


def test_versions() -> None:
    assert parse_version("Configuration data\nSLURM_VERSION           = 22.05.8\n") == "22.05.8"
    with pytest.raises(Unreachable):
        parse_version("")
    assert [relaunch_needs_pause(v) for v in ("22.05.8", "24.11.0", "24.11.1", "26.05.0-0rc1")] == [
        True,
        True,
        False,
        False,
    ]


def test_the_separator_word_is_plain() -> None:
    with pytest.raises(InvalidInput):
        job_format("a,b")
