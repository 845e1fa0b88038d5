"""``python3 -m everstep.apps.slurm_pod ROLE``: first program of a container of a Slurm cluster.

    controller   becomes slurmctld            worker   runs slurmd
    login        becomes sshd                 vouch    becomes sackd or munged, beside one of the others
    leave        the preStop hook of a worker

Needs the mounts and variables of :mod:`everstep.apps.slurm_pod.layout`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from pathlib import Path

from everstep.core.errors import EverstepError

_ROLES = {
    "controller": ("controller", "run"),
    "worker": ("worker", "run"),
    "leave": ("leaving", "run"),
    "login": ("login", "run"),
    "vouch": ("login", "vouch"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="slurm-pod", description="First program of a container of a Slurm cluster.")
    parser.add_argument("role", choices=sorted(_ROLES))
    role = parser.parse_args().role
    # What a hook prints goes nowhere; the container's log is the output of its first process.
    stream = Path("/proc/1/fd/2").open("a") if role == "leave" else sys.stderr  # noqa: SIM115 - open to the end
    logging.basicConfig(level=logging.INFO, stream=stream, format=f"{role}: %(message)s")
    module, function = _ROLES[role]
    try:
        getattr(importlib.import_module(f"everstep.apps.slurm_pod.{module}"), function)()
    except EverstepError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
