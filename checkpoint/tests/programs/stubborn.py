"""A rank that trains alone, step by step, and can be told to get stuck in one for ever, as in a collective."""

import argparse
import os
import time
from pathlib import Path

from everstep_checkpoint import Every, Run, links, vault

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path)
parser.add_argument("--grace", type=float, default=4.0)
parser.add_argument("--stuck-rank", type=int, default=-1)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--slow-disk", type=float, default=0.0)
parser.add_argument("--away", type=float, default=links._AWAY)
args = parser.parse_args()
links._AWAY = args.away

if args.slow_disk and os.environ["RANK"] == "0":
    real = vault.write_shard

    def slow(*how):
        time.sleep(args.slow_disk)
        return real(*how)

    vault.write_shard = slow

done = {"steps": 0}
state = {"steps": (lambda: done["steps"], lambda saved: done.update(steps=saved))}
with Run(args.dir, state=state, grace=args.grace, every=Every(steps=5)) as run:
    for step in run.steps(100_000):
        if step == 7 and run.world.rank == args.stuck_rank:
            (args.dir / "stuck").touch()
            time.sleep(600)
        if step == 7 and run.world.rank == args.fail_rank:
            raise RuntimeError("out of memory")
        time.sleep(0.02)
        done["steps"] = step + 1
        run.report()
