"""States with tensors in them, DataLoader workers, and the example with DistributedDataParallel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_ranks import TRAIN, Launch, records, trajectory, until

from everstep_checkpoint import Every, Run, attach, verify
from everstep_checkpoint.pytorch import Sharded
from everstep_checkpoint.shard import read_shard, write_shard
from everstep_checkpoint.snapshot import HostMemory

PROGRAMS = Path(__file__).parent / "programs"
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool,
         torch.complex64, torch.float8_e4m3fn]  # fmt: skip


def through_a_file(tmp_path: Path, state: object) -> object:
    memory = HostMemory()
    size, sha256 = write_shard(tmp_path / "x.shard", memory.take(state))
    return read_shard(tmp_path / "x.shard", size, sha256)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (40, 50), (3, 1, 2000)], ids=str)
def test_tensors_come_back_as_they_were(tmp_path: Path, kind: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(kind)
    found = through_a_file(tmp_path, {"t": tensor, "twice": tensor})
    assert isinstance(found, dict)
    assert found["t"].dtype is kind
    assert found["t"].shape == tensor.shape
    assert found["t"].flatten().view(torch.uint8).tolist() == tensor.flatten().view(torch.uint8).tolist()
    assert found["t"] is found["twice"]


def test_views_parameters_and_odd_tensors(tmp_path: Path) -> None:
    base = torch.arange(40_000.0).reshape(200, 200)
    parameter = torch.nn.Parameter(base.clone(), requires_grad=False)
    state = {
        "transposed": base.t(),
        "slice": base[::3, 5:50],
        "parameter": parameter,
        "grad": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(4).to_sparse(),
        "conj": torch.complex(base, base).conj(),
    }
    found = through_a_file(tmp_path, state)
    assert isinstance(found, dict)
    for name in ("transposed", "slice", "conj"):
        assert torch.equal(found[name], state[name]), name
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert not found["parameter"].requires_grad
    assert found["grad"].requires_grad
    assert torch.equal(found["sparse"].to_dense(), torch.eye(4))


def test_large_tensors_are_copied_once_and_not_pickled() -> None:
    tensor = torch.zeros(1_000_000)
    snapshot = HostMemory().take({"t": tensor})
    assert len(snapshot.body) < 2000
    tensor += 1
    assert not any(snapshot.views[0][:64]), "the snapshot is of then"


def test_model_and_optimizer_resume_to_the_same_weights(tmp_path: Path) -> None:
    def train(directory: Path, total: int, stop_at: int | None = None) -> torch.Tensor:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        with Run(directory, state={"model": model, "optimizer": optimizer}, every=Every(steps=7)) as run:
            for step in run.steps(total):
                optimizer.zero_grad()
                model(torch.randn(16, 40)).square().mean().backward()
                optimizer.step()
                if step == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                    until(lambda: run._team.member.stop, "the stop is agreed on")
        return torch.cat([weight.detach().flatten() for weight in model.parameters()])

    whole = train(tmp_path / "whole", 40)
    first = train(tmp_path / "cut", 40, stop_at=17)
    assert not torch.equal(whole, first)
    assert torch.equal(whole, train(tmp_path / "cut", 40)), "bit for bit"
    assert records(tmp_path / "cut")[1][0]["resumed_from"] == 18


@pytest.mark.parametrize(("workers", "how"), [(0, "fork"), (2, "fork"), (2, "spawn")])
def test_a_signal_to_the_whole_group_does_not_cost_the_save(tmp_path: Path, workers: int, how: str) -> None:
    """As torchrun sends it: the DataLoader workers get it, too."""
    program = [sys.executable, str(PROGRAMS / "with_workers.py"), "--dir", str(tmp_path), "--how", how]
    process = subprocess.Popen([*program, "--workers", str(workers)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, start_new_session=True)  # fmt: skip
    steps = tmp_path / "steps"
    until(lambda: steps.exists() and int(steps.read_text() or 0) > 5, "it trains", timeout=120)
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=90)[0]
    assert (process.returncode, said.splitlines()[-1]) == (0, "stopped"), said
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("stopped", int(steps.read_text()))


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGUSR1])
def test_torchrun_through_exec(tmp_path: Path, name: signal.Signals) -> None:
    """Two ranks with DataLoader workers under the real torchrun, which alone would die of SIGUSR1 and exit with 1."""
    argv = [sys.executable, "-m", "everstep_checkpoint.cli", "exec", "--grace", "60", "--"]
    argv += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += [str(PROGRAMS / "with_workers.py"), "--dir", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "EVERSTEP_"))}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    for steps in (tmp_path / "steps", tmp_path / "steps-1"):
        until(lambda file=steps: file.exists() and int(file.read_text() or 0) > 5, "both ranks train", timeout=180)
    process.send_signal(name)
    said = process.communicate(timeout=120)[0]
    record = records(tmp_path)[0]
    assert (process.returncode, record[-1]["outcome"]) == (143, "stopped"), said
    (stop,) = [event for event in record if event["event"] == "stop"]
    assert record[-1]["saved_step"] == stop["agreed_step"] == verify(next(tmp_path.glob("step_*"))).step
    assert record[0]["grace"]["torchrun"] == 55


@pytest.mark.parametrize(
    ("forgotten", "first_wrong"), [("nothing", None), ("random", 0), ("data", 0), ("optimizer", 1), ("schedule", 2)]
)
def test_a_restore_that_forgets_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str, first_wrong: int | None
) -> None:
    """The losses after a cut, against a run without one, by ==: how many steps later each omission shows."""

    def train(directory: Path, stop_at: int | None, forget: str) -> list[str]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Dropout(0.3), torch.nn.Linear(24, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        data = torch.Generator().manual_seed(1)
        state = {"model": model, "optimizer": optimizer, "schedule": schedule,
                 "data": (data.get_state, data.set_state)}  # fmt: skip
        if forget in state:
            getter = state[forget].state_dict if forget != "data" else data.get_state
            state[forget] = (getter, lambda saved: None)
        if forget == "random":
            monkeypatch.setattr("everstep_checkpoint.state._put_random_states", lambda states: None)
        losses = []
        with Run(directory, state=state) as run:
            for step in run.steps(40):
                optimizer.zero_grad()
                loss = (model(torch.randn(16, 12, generator=data)) - 1).square().mean()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item().hex())
                if step == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                    until(lambda: run._team.member.stop, "the stop is agreed on")
        return losses

    whole = train(tmp_path / "whole", None, "nothing")
    before = train(tmp_path / "cut", 19, "nothing")
    after = train(tmp_path / "cut", None, forgotten)
    assert before == whole[:20]
    wrong = [step for step, loss in enumerate(after) if loss != whole[20 + step]]
    assert min(wrong, default=None) == first_wrong


@pytest.mark.timeout(900)  # four processes import torch three times, on however many cores
def test_the_example_resumes_to_the_same_losses(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """Four ranks: with two, a sum has the same bits in any order."""
    program, args = TRAIN.parent / "train_torch_ddp.py", ("--steps", "60", "--step-time", "0.02")
    assert launch(tmp_path / "reference", *args, size=4, program=program).wait(300) == [0] * 4
    first = launch(tmp_path / "run", *args, size=4, program=program)
    until(lambda: first.steps_done() >= 20, "20 steps are done", timeout=300)
    first.signal(signal.SIGTERM, 1)
    assert first.wait(300) == [0] * 4
    assert launch(tmp_path / "run", *args, size=4, program=program).wait(300) == [0] * 4
    assert records(tmp_path / "run")[1][0]["resumed_from"] >= 20
    assert trajectory(tmp_path / "run") == trajectory(tmp_path / "reference")


def test_sharded_state_through_an_attached_run(tmp_path: Path) -> None:
    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(8, 8)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = build()
    with attach(tmp_path, every=Every(steps=3)) as run:
        for step in range(1, 4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            if run.should_save(step):
                Sharded(model, optimizer).save(run.begin(step))
                assert run.commit(step)
    expected = torch.randn(5)
    other, other_optimizer = build()
    with attach(tmp_path) as run:
        assert run.latest is not None
        Sharded(other, other_optimizer).load(run.latest)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), other.parameters(), strict=True))
    ours, theirs = (list(each.state_dict()["state"].values()) for each in (optimizer, other_optimizer))
    assert all(torch.equal(one["exp_avg"], two["exp_avg"]) for one, two in zip(ours, theirs, strict=True))
    assert torch.equal(torch.randn(5), expected), "the generator stands where it stood"
