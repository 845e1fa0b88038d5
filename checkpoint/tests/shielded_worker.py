"""What a worker process runs, in a module of its own so that a spawned one finds it."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from everstep_checkpoint.shield import Shield


def init(worker: int) -> None:
    os.environ["WORKER"] = str(worker)


def work(shield: Shield, pipe: Connection) -> None:
    shield(3)
    pipe.send(os.environ["WORKER"])
    while pipe.poll(30):
        pipe.send(pipe.recv())


def work_later(shield: Shield, pipe: Connection) -> None:
    """As torch does: its own preparations come before worker_init_fn."""
    pipe.send("begun")
    pipe.recv()
    work(shield, pipe)
