"""`everstep check` where it is used: in the agent's container, and on a node of the lab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.lab.cluster import Lab

pytestmark = pytest.mark.lab
AGENT = ("-l", "app.kubernetes.io/component=agent", "--field-selector=spec.nodeName=gpu-2", "-o", "name")


def test_a_check_in_the_agents_container_finds_the_node_fit(lab: Lab) -> None:
    (pod,) = lab.kubectl("-n", "everstep-system", "get", "pods", *AGENT).split()
    report = json.loads(lab.kubectl("-n", "everstep-system", "exec", pod, "--", "everstep", "check", "--json"))
    assert report["fitness"] == "fit", report
    assert {"kernel log", "GPUs"} <= {item["source"] for item in report["sources"]}


def test_a_check_from_the_command_line_of_the_lab(lab: Lab) -> None:
    everstep = str(Path(sys.executable).with_name("everstep"))
    command = [everstep, "lab", "exec", "--name", lab.layout.name, "gpu-2", "--", "everstep", "check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit:" in done.stdout.splitlines()[-1]
