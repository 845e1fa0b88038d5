"""A rank with a loop and a save of its own, which keeps its state as text."""

import argparse
import time
from pathlib import Path

from everstep_checkpoint import Every, attach

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path)
with attach(parser.parse_args().dir, every=Every(steps=10), grace=20.0) as run:
    rank = run.world.rank
    if run.latest is not None:
        assert (run.latest / "sub" / f"rank-{rank}.txt").read_text() == f"{run.latest_step()} {rank}"
    for step in range(run.latest_step(0) + 1, 100_000):
        time.sleep(0.005)
        run.report(step, loss=1.0)
        if run.should_save(step):
            folder = run.begin(step)
            (folder / "sub").mkdir(exist_ok=True)
            (folder / "sub" / f"rank-{rank}.txt").write_text(f"{step} {rank}")
            run.commit(step)
        if run.should_stop(step):
            break
