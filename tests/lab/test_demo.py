"""`everstep demo` from nothing to its report, as somebody types it; the other heals are in `heals/`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.lab.cluster import remove
from everstep.lab.demo.proof import PROMISED_STEPS
from everstep.lab.layout import LabLayout
from tests.lab.traces import traces

pytestmark = pytest.mark.lab
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_demo_proves_a_heal_and_leaves_a_report_and_nothing_else(tmp_path: Path) -> None:
    name, folder = f"demo-{os.getpid()}", tmp_path / "report"
    command = [sys.executable, "-m", "everstep.apps.cli", "demo", "--name", name, "--report", str(folder), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    finally:
        remove(name)
    assert done.returncode == 0, done.stderr[-3000:] or done.stdout[-3000:]
    report = json.loads(done.stdout)
    assert report == json.loads((folder / "report.json").read_text())
    assert report["proven"] is True
    assert {step["name"] for step in report["steps"]} == set(PROMISED_STEPS)
    assert (report["job"]["restarts"], report["job"]["steps_lost"]) == (1, 0)
    assert report["job"]["trajectory_identical"] is True
    spent = report["durations"]
    assert spent["detect_s"] <= 1, spent
    assert spent["healthy_node_s"] <= 20, spent
    assert spent["resumed_s"] <= 45, spent
    assert spent["overhead_s"] <= 5, spent
    assert (folder / "timeline.png").read_bytes().startswith(PNG)
    assert report["nodes"]["replacement"] in (folder / "report.html").read_text()
    assert traces(LabLayout.of(name)) == []
