"""The chart as Helm renders it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "everstep"


def helm_template(
    binaries: Path, *settings: str, namespace: str = "everstep-system", files: Mapping[str, Path] | None = None
) -> subprocess.CompletedProcess[str]:
    """``helm template`` with ``--set`` for each of ``settings`` and ``--set-file`` for each of ``files``."""
    command = [str(binaries / "helm"), "template", "everstep", str(CHART), "--namespace", namespace]
    command += [part for setting in settings for part in ("--set", setting)]
    command += [part for value, path in (files or {}).items() for part in ("--set-file", f"{value}={path}")]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)


def rendered(binaries: Path, *settings: str, files: Mapping[str, Path] | None = None) -> list[dict[str, Any]]:
    """Every object of the chart."""
    done = helm_template(binaries, *settings, files=files)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]
