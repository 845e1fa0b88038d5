"""The login node, and what vouches for its users: sackd or munged, in a container of its own."""

from __future__ import annotations

from pathlib import Path

from everstep.apps.slurm_pod import keys, layout


def run() -> None:
    """Becomes sshd."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    keys.wait_for_munge()
    keys.become("root", "/usr/sbin/sshd", "-D", "-e")


def vouch() -> None:
    """Becomes munged (before Slurm 23.11) or sackd."""
    if keys.uses_munge():
        keys.install([layout.KEYS / "munge.key"], Path("/etc/munge"), "munge", 0o400)
        for folder in (Path("/etc/munge"), Path("/var/log/munge"), Path("/var/lib/munge")):
            keys.give(folder, "munge", 0o700)
        keys.give(layout.MUNGE_FOLDER, "munge", 0o755)
        keys.become("munge", "munged", "--foreground")
    # The folder is shared with the users' container: nobody but root may put a socket there.
    keys.give(layout.SACK_FOLDER, "root", 0o755)
    keys.become("root", "sackd", "-D")
