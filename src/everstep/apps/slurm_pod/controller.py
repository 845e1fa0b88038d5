"""slurmctld: state on a volume, configuration from the operator; after a change of it, all daemons are told."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import time
from pathlib import Path

from everstep.adapters.slurm.tokens import mint
from everstep.apps.slurm_pod import keys, layout
from everstep.core.slurm_conf import SLURM_USER, STATE_FOLDER

log = logging.getLogger(__name__)
_FILES = ("slurm.conf", "gres.conf", "cgroup.conf")
_MARK = Path(STATE_FOLDER) / "everstep-configuration"
_START_SECONDS = 60.0


def run() -> None:
    """Becomes slurmctld."""
    keys.install((layout.CONFIG / name for name in _FILES), layout.SLURM_FOLDER, SLURM_USER, 0o644)
    secret = [path for name in ("slurm.key", "jwt.key") if (path := layout.KEYS / name).exists()]
    keys.install(secret, layout.SLURM_FOLDER, SLURM_USER, 0o600)
    keys.give(Path(STATE_FOLDER), SLURM_USER, 0o700)
    keys.wait_for_munge()
    before = _MARK.read_text() if _MARK.exists() else None
    now = hashlib.sha256(b"".join((layout.CONFIG / name).read_bytes() for name in _FILES)).hexdigest()
    if before not in (None, now):
        in_background(_tell_all)
    _MARK.write_text(now)
    keys.become("root", "slurmctld", "-D")  # drops to SlurmUser by itself


def in_background(work: object) -> None:
    """Runs a function in a process that belongs to the container's init, not to the daemon that we become."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:
        assert callable(work)
        try:
            work()
        except Exception:
            log.exception("the work beside the daemon failed")
            os._exit(1)
    os._exit(0)


def _tell_all() -> None:
    """Workers keep the configuration that they fetched until they are told to fetch it again."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        token = mint((layout.KEYS / "jwt.key").read_bytes(), "root", time.time(), 60)
        env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(layout.CONFIG / "client.conf"), "SLURM_JWT": token}
        if subprocess.run(["scontrol", "reconfigure"], check=False, env=env, capture_output=True).returncode == 0:
            log.info("the new configuration was sent to all nodes")
            return
        time.sleep(0.5)
    log.error("the new configuration could not be sent; run `scontrol reconfigure` in the controller's pod")
