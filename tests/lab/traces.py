"""What a lab leaves on the machine, as the machine sees it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from everstep.lab import cgroups
from everstep.lab.layout import LabLayout


def traces(layout: LabLayout) -> list[str]:
    """Everything that carries the lab's name or directory: empty when the lab left nothing."""
    found = [f"namespace {name}" for name in _lines("ip", "netns", "list") if name.startswith(f"ev-{layout.name}-")]
    found += [f"link {line}" for line in _lines("ip", "-details", "link", "show") if str(layout.root) in line]
    found += [
        f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if str(layout.root) in line
    ]
    found += [f"group {root / layout.cgroup}" for root in cgroups.hierarchies() if (root / layout.cgroup).exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(layout.root) in command or f"everstep.lab.supervisor {layout.name} " in command:
            found.append(f"process {process.name}: {command[:120]}")
    if layout.root.exists():
        found.append(f"directory {layout.root}")
    return found


def routes(link: str) -> list[str]:
    """The host's routes over one of its links."""
    return [route for route in _lines("ip", "-4", "route", "show") if f"dev {link} " in f"{route} "]


def _lines(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
