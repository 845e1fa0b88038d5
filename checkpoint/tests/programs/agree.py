"""One rank of many trials: all ranks walk at their own pace, one gets SIGTERM, everybody says where it stopped."""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from everstep_checkpoint.team import Team
from everstep_checkpoint.world import World, side_port

rank, size, trials, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
pace = random.Random(1000 + rank)
for trial in range(trials):
    shared = random.Random(trial)
    victim, delay = shared.randrange(size), shared.uniform(0.0, 0.12)
    token = f"trial-{trial}-{folder.name}"
    port = 0 if "files" in sys.argv else side_port(token)
    team = Team(World(rank, size, "127.0.0.1", port, token), folder / "own", 20.0, lambda event, **fields: None)
    team.start(20.0)
    if team.leader is not None:
        team.announce_resume({"step": 0})
    else:
        team.wait_resume(20.0)
    fired = []

    def fire(fired=fired):
        fired.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGTERM)

    if rank == victim:
        threading.Timer(delay, fire).start()
    step = 0
    while (verdict := team.boundary(step)) == "go":
        time.sleep(pace.uniform(0, 0.006))
        step += 1
    latency = time.perf_counter() - fired[0] if fired else None
    team.close(ok=True, why="", together=True)
    print(json.dumps({"trial": trial, "step": step, "verdict": verdict, "latency": latency}), flush=True)
