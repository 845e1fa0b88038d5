"""What a worker reads in Slurm's record of its node. The lines are of real controllers, 22.05.8 and 26.05.5."""

from __future__ import annotations

import pytest

from everstep.core.slurm_worker import record_differs, registered_since

RECORD = (
    "NodeName=gpu-1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=1.20 "
    "AvailableFeatures=main ActiveFeatures=main Gres=gpu:2(S:0) GresUsed=gpu:0(IDX:N/A) NodeAddr=198.19.0.66 "
    "NodeHostName=gpu-1 Version=24.11.5 RealMemory=24105 State=IDLE+DYNAMIC_NORM ThreadsPerCore=1 "
    "BootTime=1795968400 SlurmdStartTime=1795970909 LastBusyTime=1795970909 Reason=a b State=DOWN [root@1795970909]"
)


@pytest.mark.parametrize(
    ("conf", "differs"),
    [
        ("Feature=main Gres=gpu:2", False),
        ("Feature=main Gres=gpu:1", True),
        ("Feature=main", True),
        ("Feature=other Gres=gpu:2", True),
        ("Feature=main Gres=gpu:2 CPUs=2 RealMemory=24105", False),
        ("Feature=main Gres=gpu:2 CPUs=64", True),
        ("Feature=main Gres=gpu:2 RealMemory=1", True),
    ],
)
def test_record_differs(conf: str, differs: bool) -> None:
    assert record_differs(RECORD, conf) is differs


def test_no_gpus_on_either_side() -> None:
    record = RECORD.replace("Gres=gpu:2(S:0)", "Gres=(null)")
    assert not record_differs(record, "Feature=main")
    assert record_differs(record, "Feature=main Gres=gpu:2")


def test_registered_since() -> None:
    assert registered_since(RECORD, 1795970909.9)
    assert not registered_since(RECORD, 1795970910.0)


@pytest.mark.parametrize("state", ["DOWN+DYNAMIC_NORM", "IDLE*+DRAIN", "IDLE+NOT_RESPONDING", "UNKNOWN"])
def test_a_node_that_does_not_answer_has_not_registered(state: str) -> None:
    assert not registered_since(RECORD.replace("State=IDLE+DYNAMIC_NORM", f"State={state}"), 0)


def test_a_record_without_a_start_is_of_a_node_that_never_came() -> None:
    assert not registered_since(RECORD.replace("SlurmdStartTime=1795970909", "SlurmdStartTime=None"), 0)
