"""How long a heal takes: several in a row on one lab, every one of them proven, then the medians.

    python benchmarks/heal.py [--runs 10] [--slurm 24.11] [--busy] [--json]

``--busy`` keeps one core computing meanwhile. Needs root and what `make lab` builds. Exits 1 when a heal is not proven.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from everstep.lab.cluster import Lab
from everstep.lab.demo import stage
from everstep.lab.demo.cluster_view import ClusterView
from everstep.lab.demo.login import make_key, until
from everstep.lab.demo.proof import durations, prove
from everstep.lab.layout import LabConfig
from everstep.lab.setup import plan_lab

LEGS = ("detect_s", "isolate_s", "healthy_node_s", "resumed_s", "overhead_s")
REPAIR_SECONDS = 5.0


class Quiet:
    """Nothing is shown while figures are taken."""

    def phase(self, text: str) -> None: ...

    def step(self, after: float, name: str, reason: str) -> None: ...


def whole(lab: Lab) -> bool:
    """All nodes are back: as many in service as the lab has, and its spare."""
    nodes = lab.get("nodes", "-l", f"everstep.io/pool={lab.config.pool}")["items"]
    spares = lab.get("nodes", "-l", f"everstep.io/spare-for={lab.config.pool}")["items"]
    return len(nodes) == lab.config.nodes and len(spares) == lab.config.spares


def measure(runs: int, slurm: str) -> list[dict[str, float | None]]:
    """The durations of each heal in seconds. Raises SystemExit with the first claim that is not proven."""
    show, found = Quiet(), []
    config = LabConfig(name="bench-heal", slurm=slurm, repair_seconds=REPAIR_SECONDS)
    with Lab.up(plan_lab(config)) as lab, tempfile.TemporaryDirectory() as folder, ClusterView(lab) as view:
        wide = '{"spec": {"breaker": {"maxStarts": 1000, "maxEscalations": 1000}}}'
        lab.kubectl("patch", "remediationpolicy", "default", "--type=merge", "-p", wide)
        login = stage.create_slurm(lab, view, make_key(Path(folder)), slurm, show)
        for run in range(1, runs + 1):
            until("the lab is whole again", 120, lambda: whole(lab))
            options = stage.DemoOptions(slurm=slurm, name=config.name)
            login.run("rm", "-rf", "reference")
            evidence = stage.heal_one(stage.Scene(lab, login, view), options, show)
            for claim in prove(evidence):
                if not claim.proven:
                    raise SystemExit(f"heal {run} is not proven: {claim.says}")
            found.append(asdict(durations(evidence)))
            print(f"heal {run}: {found[-1]}", file=sys.stderr)
        login.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--busy", action="store_true", help="keep one core computing meanwhile")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if arguments.busy else None
    try:
        found = measure(arguments.runs, arguments.slurm)
    finally:
        if spin:
            spin.kill()
    summary = {}
    for leg in LEGS:
        seen = sorted(value for one in found if (value := one[leg]) is not None)
        summary[leg] = {"median": statistics.median(seen), "min": seen[0], "max": seen[-1]}
    if arguments.json:
        print(json.dumps({"runs": found, "summary": summary}, indent=2))
        return
    for leg, values in summary.items():
        print(f"{leg:<16} median {values['median']:7.2f} s   {values['min']:.2f} to {values['max']:.2f}")


if __name__ == "__main__":
    main()
