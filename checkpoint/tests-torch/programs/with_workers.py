"""A training that reads its data through DataLoader workers, and notes the sum of what it has seen."""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from everstep_checkpoint import Run


class Numbers(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.tensor(float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--how", default="fork")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    weight = torch.nn.Parameter(torch.zeros(1))
    state = {"weight": (lambda: {"w": weight.data}, lambda saved: weight.data.copy_(saved["w"]))}
    with Run(args.dir, state=state, grace=60.0) as run:
        how = args.how if args.workers else None
        loader = iter(DataLoader(Numbers(), batch_size=2, num_workers=args.workers, multiprocessing_context=how))
        for step in run.steps(10_000):
            with torch.no_grad():
                weight += next(loader).sum()
            (args.dir / ("steps" if run.world.rank == 0 else "steps-1")).write_text(str(step + 1))
            run.report()
    print(run.outcome)


if __name__ == "__main__":
    main()
