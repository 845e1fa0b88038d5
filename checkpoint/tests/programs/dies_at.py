"""Lives as rank 0's disk work does, again and again, and dies at the first, second, ... call that changes the disk."""

import json
import os
import sys
from pathlib import Path

from everstep_checkpoint import verify
from everstep_checkpoint.snapshot import HostMemory
from everstep_checkpoint.vault import Vault

CALLS = ("open", "mkdir", "rename", "fsync", "unlink", "rmdir")
directory = Path(sys.argv[1])


def live(name: str) -> None:
    vault = Vault(directory, name)
    vault.open()
    found = vault.newest_valid()
    vault.sweep()
    begin = found.step if found is not None else 0
    print(json.dumps({"name": name, "resumed": begin}), flush=True)
    for step in range(begin + 1, begin + 4):
        snapshot = HostMemory().take({"step": step, "bulk": bytes(5000)})
        reports = {rank: vault.write_rank(step, rank, snapshot, lambda: False)["manifest"] for rank in range(2)}
        vault.publish(step, reports, {})
        print(json.dumps({"name": name, "published": step}), flush=True)
        vault.retain(2)


def die_at(number: int) -> None:
    count = 0

    def counted(real):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                os._exit(9)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


number, code = 0, 9
while code == 9:
    number += 1
    child = os.fork()
    if child == 0:
        for path in directory.glob("step_*"):
            verify(path)  # a checkpoint's name on something that is none ends this program, and the test
        die_at(number)
        live(f"life-{number}")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code)
