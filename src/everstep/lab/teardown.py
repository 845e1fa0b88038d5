"""Ends a lab whoever started it and however far it came, by what it left in the kernel and in its directory."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.lab import cgroups, networks
from everstep.lab.errors import LabError
from everstep.lab.layout import LabLayout
from everstep.lab.processes import run_now


def tear_down(layout: LabLayout, *, keep_files: bool = False) -> None:
    """Leaves nothing of the lab: processes, control groups, namespaces, links, routes, and its directory.

    Works after a kill -9 of anything. Raises LabError with what could not be removed.
    """
    with _deaf_to_ctrl_c():
        _tear_down(layout, keep_files)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """People press it twice; the few seconds that this takes are bounded by deadlines."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tear_down(layout: LabLayout, keep_files: bool) -> None:
    cgroups.kill_members(layout.cgroup)
    cgroups.remove(layout.cgroup)
    names = networks.namespaces_of(layout.name)
    links = host_links(layout)
    for link in links:
        run_now("ip", "link", "del", link, check=False)  # the routes go with it
    for name in names:
        run_now("ip", "netns", "del", name, check=False)
    if left := [*networks.namespaces_of(layout.name), *host_links(layout)]:
        raise LabError(f"could not remove {', '.join(left)}: try `ip netns del` or `ip link del` by hand")
    if not keep_files and layout.root.exists():
        _remove_files(layout.root)


def host_links(layout: LabLayout) -> list[str]:
    """The host's ends of this lab's veths."""
    return [
        link["ifname"]
        for link in json.loads(run_now("ip", "-json", "link", "show") or "[]")
        if link.get("ifalias") == f"everstep lab {layout.root}"
    ]


def _remove_files(root: Path) -> None:
    """Mounts of the lab lived in its own mount namespaces and are gone with them; a file may be busy for a moment."""
    deadline = time.monotonic() + 10
    while True:
        try:
            shutil.rmtree(root)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LabError(f"cannot remove {root}: {error}") from error
            time.sleep(0.05)
