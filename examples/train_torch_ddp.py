"""The training of train.py with PyTorch DistributedDataParallel: `srun python3 train_torch_ddp.py --dir DIR`.

Runs under srun (one task a GPU) or torchrun; on a machine without GPUs with gloo on the CPU. What Everstep needs are
the lines with `run`; the random generators of torch are saved without being named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from everstep_checkpoint import Every, Run

INPUTS, HIDDEN, CLASSES, SAMPLES, BATCH = 32, 64, 10, 4096, 64


class Shuffled:
    """The data set in a new random order every epoch; each rank takes its own slice of every batch."""

    def __init__(self, rank: int, size: int) -> None:
        maker = torch.Generator().manual_seed(20240229)
        self.inputs = torch.randn(SAMPLES, INPUTS, generator=maker)
        hidden = torch.tanh(self.inputs @ torch.randn(INPUTS, 24, generator=maker))
        self.labels = (hidden @ torch.randn(24, CLASSES, generator=maker)).argmax(dim=1)
        self._rank, self._whole = rank, BATCH * size
        self._shuffler = torch.Generator().manual_seed(7)
        self._order = torch.randperm(SAMPLES, generator=self._shuffler)
        self._position = 0

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._position + self._whole > SAMPLES:
            self._order, self._position = torch.randperm(SAMPLES, generator=self._shuffler), 0
        start = self._position + self._rank * BATCH
        self._position += self._whole
        chosen = self._order[start : start + BATCH]
        return self.inputs[chosen], self.labels[chosen]

    def state_dict(self) -> dict:
        return {"shuffler": self._shuffler.get_state(), "order": self._order, "position": self._position}

    def load_state_dict(self, saved: dict) -> None:
        self._shuffler.set_state(saved["shuffler"])
        self._order, self._position = saved["order"], saved["position"]


def join_ranks() -> torch.device:
    """Make the process group from what the launcher says, and choose this rank's device."""
    env = os.environ
    if "RANK" not in env and "SLURM_STEP_NUM_TASKS" in env:
        nodes = env["SLURM_STEP_NODELIST"]
        launch = f"{env['SLURM_JOB_ID']}.{env.get('SLURM_RESTART_COUNT', '0')}.{env.get('SLURM_STEP_ID', '0')}"
        env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]
        env["LOCAL_RANK"] = env["SLURM_LOCALID"]
        env.setdefault("MASTER_ADDR", re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes).split(",")[0])
        # Another port for every attempt: a process left over from the last one may still hold the old one.
        env.setdefault("MASTER_PORT", str(28000 + zlib.crc32(launch.encode()) % 4000))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "28000"}.items():
        env.setdefault(name, value)
    with_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(env.get("LOCAL_RANK", "0")) % torch.cuda.device_count()) if with_gpu else "cpu"
    if with_gpu:
        torch.cuda.set_device(device)
    # A peer that is gone must not hold this rank for the default of ten minutes and more.
    dist.init_process_group("nccl" if with_gpu else "gloo", timeout=timedelta(seconds=300))
    return torch.device(device)


def train(args: argparse.Namespace) -> None:
    device = join_ranks()
    rank, size, directory = dist.get_rank(), dist.get_world_size(), Path(args.dir).expanduser()
    torch.manual_seed(100)  # the same first weights on all ranks
    layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Dropout(0.2), nn.Linear(HIDDEN, CLASSES))
    model = layers.to(device)
    # By itself DDP puts the gradients into another order after the first step of every start. With more than two ranks
    # their sums then have other last bits, and a resumed run does not equal an uninterrupted one. This keeps the order,
    # for a walk over the graph at every step (DDP warns of it); leave it out where that costs more than it is worth.
    replica = DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None, find_unused_parameters=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    data = Shuffled(rank, size)
    torch.manual_seed(200 + rank)  # another dropout on every rank
    # The model itself, not the wrapper: the names of its weights then do not depend on how it is run.
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "data": data}
    with Run(directory, state=state, grace=args.grace, every=Every(seconds=args.save_every)) as run:
        losses = open_losses(directory, run.attempt) if rank == 0 else None
        for step in run.steps(args.steps):
            began = time.monotonic()
            inputs, labels = data.next_batch()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(replica(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            mean = loss.detach().double()
            dist.all_reduce(mean)
            value = float(mean) / size
            time.sleep(max(0.0, began + args.step_time - time.monotonic()))
            if losses is not None:
                line = json.dumps({"attempt": run.attempt, "step": step + 1, "loss": value.hex()})
                os.write(losses, f"{line}\n".encode())
            run.report(loss=value)
    if rank == 0:
        print(f"{run.outcome} after step {run.saved_step}", flush=True)
    dist.destroy_process_group()


def open_losses(directory: Path, attempt: int | None) -> int:
    """One file an attempt: for a step that two attempts trained, the later attempt's line counts."""
    folder = directory / "losses"
    folder.mkdir(exist_ok=True)
    return os.open(folder / f"attempt-{attempt or 0:04d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, help="directory that all ranks share")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole training (default %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds a step takes at least (%(default)s)")
    parser.add_argument("--save-every", type=float, default=60.0, help="seconds between two saves (%(default)s)")
    parser.add_argument("--grace", type=float, default=120.0, help="seconds from SIGTERM to SIGKILL (%(default)s)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
