"""What the launchers' variables say."""

from __future__ import annotations

import pytest

from everstep_checkpoint import World
from everstep_checkpoint.world import detect, first_host

SLURM = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
STEP = SLURM | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu-[1-2]"}


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu-1", "gpu-1"), ("gpu-[1-2]", "gpu-1"), ("gpu-[007-9,12]", "gpu-007"), ("a[3,5]-ib,b1", "a3-ib"),
        ("x,gpu-[1-2]", "x"), ("gpu-2,gpu-5", "gpu-2"),
    ],
)  # fmt: skip
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_srun() -> None:
    world = detect(STEP | {"SLURM_PROCID": "1"})
    assert (world.rank, world.size, world.host, world.attempt) == (1, 2, "gpu-1", 1)
    assert world.token == detect(STEP).token
    assert 20000 <= world.port < 28000


def test_each_launch_has_a_name_of_its_own() -> None:
    others = [STEP | {"SLURM_RESTART_COUNT": "2"}, STEP | {"SLURM_STEP_ID": "1"}, STEP | {"SLURM_JOB_ID": "43"}]
    assert len({detect(env).token for env in [STEP, *others]}) == 4


def test_a_batch_script_without_srun_is_one_rank() -> None:
    assert detect(SLURM).size == 1


def test_torchrun_under_srun_counts_torchruns_ranks() -> None:
    elastic = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    world = detect(STEP | elastic)
    assert (world.rank, world.size, world.host) == (3, 4, "h")


def test_nothing_known() -> None:
    world = detect({})
    assert (world.rank, world.size, world.attempt) == (0, 1, None)


def test_impossible_rank() -> None:
    with pytest.raises(ValueError, match="rank 2 is not one of 2 ranks"):
        World(rank=2, size=2)


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (SLURM | {"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT is 'x'"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "-2"}, "SLURM_STEP_NUM_TASKS is '-2'"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'"),
        ({"RANK": "1"}, "WORLD_SIZE is not"),
    ],
)
def test_variables_that_cannot_be_meant(env: dict[str, str], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        detect(env)


def test_a_step_without_a_list_of_nodes_still_begins() -> None:
    world = detect(STEP | {"SLURM_STEP_NODELIST": "", "SLURM_PROCID": "1"})
    assert (world.rank, world.size, world.host) == (1, 2, "127.0.0.1")
