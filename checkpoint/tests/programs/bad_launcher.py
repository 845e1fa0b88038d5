"""Stands in for torchrun: dies of SIGUSR1, forwards SIGTERM to its rank's session, exits 1 whatever the rank did."""

import os
import signal
import subprocess
import sys
from pathlib import Path

env = os.environ | {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29555"}
program = [sys.executable, str(Path(__file__).with_name("stubborn.py")), *sys.argv[1:], "--grace", "40"]
rank = subprocess.Popen(program, env=env, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(rank.pid, signal.SIGTERM))
rank.wait()
sys.exit(1)
