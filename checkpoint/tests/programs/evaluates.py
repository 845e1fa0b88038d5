"""A rank that spends its time in an evaluation inside a step, each at its own pace."""

import argparse
import os
import random
import time
from pathlib import Path

from everstep_checkpoint import Run

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path)
folder = parser.parse_args().dir
rank = os.environ["RANK"]
pace = random.Random(int(rank))
with Run(folder, state={}, grace=20.0) as run:
    for step in run.steps(1000):
        if step < 3:
            continue
        items = 0
        with run.section("evaluation", limit=60):
            for _ in run.wrap(range(100_000)):
                items += 1
                if items == 20:
                    (folder / f"evaluating-{rank}").touch()
                time.sleep(pace.uniform(0, 0.004))
        (folder / f"left-{rank}").write_text(f"{step} {items}")
