"""The chart as Helm renders it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "everstep"


def helm_template(
    binaries: Path, *settings: str, namespace: str = "everstep-system"
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with ``--set`` for each of ``settings``."""
    command = [str(binaries / "helm"), "template", "everstep", str(CHART), "--namespace", namespace]
    command += [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)


def rendered(binaries: Path, *settings: str) -> list[dict[str, Any]]:
    """Every object of the chart."""
    done = helm_template(binaries, *settings)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]
