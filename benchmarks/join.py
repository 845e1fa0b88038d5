"""How long a spare's way into Slurm takes when one packet or connection of it is lost: each of them in turn.

    python benchmarks/join.py [--slurm 24.11] [--json]

From the pool's label on the node until Slurm calls the node idle. Needs root and what `make lab` builds. Exits 1 when
the slowest way takes longer than the target.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heal import Quiet

from everstep.lab.cluster import Lab
from everstep.lab.demo import stage
from everstep.lab.demo.cluster_view import ClusterView
from everstep.lab.demo.login import Login, make_key, until
from everstep.lab.layout import LabConfig
from everstep.lab.losses import Loss, losing
from everstep.lab.setup import plan_lab

TARGET = 5.0  # seconds: what a heal may cost over the job's own save and load
UNHURT = 5  # joins without a loss, to compare with


class Spare:
    """The lab's spare, which joins the pool and leaves it again."""

    def __init__(self, lab: Lab, login: Login) -> None:
        self.lab, self.login = lab, login
        (self._node,) = lab.get("nodes", "-l", f"everstep.io/spare-for={lab.config.pool}")["items"]
        self.name = str(self._node["metadata"]["name"])

    def join(self) -> float:
        """Seconds until Slurm calls it idle."""
        began = time.monotonic()
        self._label({"everstep.io/pool": self.lab.config.pool, "everstep.io/spare-for": None}, [])
        until("the spare is idle in Slurm", 60, self._idle, every=0.05)
        return time.monotonic() - began

    def leave(self) -> None:
        """Slurm forgets it, too, so that the next join is the first one."""
        was = {"everstep.io/pool": None, "everstep.io/spare-for": self.lab.config.pool}
        self._label(was, self._node["spec"]["taints"])
        until("the spare's slurmd is gone", 60, lambda: not self._worker())
        delete = ("exec", "-n", stage.NAMESPACE, f"{stage.CLUSTER}-slurmctld-0", "--", "scontrol", "delete")

        def forgotten() -> bool:
            self.lab.kubectl(*delete, f"nodename={self.name}")
            return True

        until("Slurm has forgotten the spare", 60, forgotten)

    def _label(self, labels: dict[str, str | None], taints: list[dict[str, str]]) -> None:
        patch = {"metadata": {"labels": labels}, "spec": {"taints": taints}}
        self.lab.kubectl("patch", "node", self.name, "--type=merge", "-p", json.dumps(patch))

    def _idle(self) -> bool:
        return self.login.run("sinfo", "-h", "-N", "-n", self.name, "-o", "%T").strip() == "idle"

    def _worker(self) -> list[Any]:
        pods = self.lab.get("pods", "-n", stage.NAMESPACE, "-l", f"everstep.io/slurm-cluster={stage.CLUSTER}")["items"]
        return [pod for pod in pods if pod["spec"].get("nodeName") == self.name]


@contextmanager
def spare_of_a_lab(slurm: str) -> Iterator[Spare]:
    config = LabConfig(name="bench-join", slurm=slurm)
    with Lab.up(plan_lab(config)) as lab, tempfile.TemporaryDirectory() as folder, ClusterView(lab) as view:
        login = stage.create_slurm(lab, view, make_key(Path(folder)), slurm, Quiet())
        try:
            yield Spare(lab, login)
        finally:
            login.close()


def sweep(spare: Spare, loss: Loss) -> list[float]:
    """Seconds of each join that lost something: the first of its kind, then the second, as far as there are any."""
    found: list[float] = []
    while True:
        with losing(spare.lab, spare.name, loss, len(found)) as lost:
            seconds = spare.join()
            hit = lost()
        spare.leave()
        if not hit:
            return found
        print(f"{loss.name.lower()} {len(found)}: {seconds:.2f} s", file=sys.stderr)
        found.append(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slurm", default="24.11")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"nothing": []}
    with spare_of_a_lab(arguments.slurm) as spare:
        for _ in range(UNHURT):
            found["nothing"].append(spare.join())
            spare.leave()
        for loss in Loss:
            found[loss.name.lower().replace("_", " ")] = sweep(spare, loss)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print("| lost | joins | median | slowest |\n|---|---|---|---|")
        for what, seconds in found.items():
            print(f"| {what} | {len(seconds)} | {statistics.median(seconds):.1f} s | {max(seconds):.1f} s |")
    sys.exit(max(itertools.chain.from_iterable(found.values())) > TARGET)


if __name__ == "__main__":
    main()
