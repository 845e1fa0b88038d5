"""Everstep's node agent beside other agents, on one stream of kernel lines, on this machine.

    python benchmarks/agent.py                      # ours alone; the targets, and exit code 1 when one is missed
    python benchmarks/agent.py --peer 'gpud=/opt/gpud run --data-dir {folder} --listen-address 127.0.0.1:{port}' \\
        --says 'gpud=got s?xid event|successfully inserted event'

Every agent reads the real /dev/kmsg, alone, one after the other and round after round. Ours writes NodeHealth to a
real API server, and counts as having reported when a watcher of that API server has it. A peer counts as having
reported when its own output says so, which is no later than anybody else could know; one without --says, when a
watcher has its Kubernetes Event on the node. Needs root, because programs may write to /dev/kmsg only so, and the
Kubernetes that `everstep lab setup` builds.

A peer's command is run without a shell. In it {folder} is an empty folder, {port} and {other_port} are free ports,
{node} is the node's name, {server} and {kubeconfig} are the API server's address and an administrator's kubeconfig.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the API server that the tests use

from beside.agents import NODE, Everstep, Peer, PeerCommand  # noqa: E402
from beside.kernel_log import KernelWriter, unlimited  # noqa: E402
from beside.lines import STORM, field_cases, mixed  # noqa: E402
from beside.measures import Agent, Readings, StormPlan, field_lines, idle, latency, storm  # noqa: E402
from beside.table import percentile, rendered  # noqa: E402
from tests.contract.kubernetes.api_server import ApiServer  # noqa: E402

from everstep.lab.binaries import binaries_dir, built  # noqa: E402

STORM_RATE = 18_700.0  # lines a second, as in node-problem-detector's issue 1168: 56,000 in 3 s
FASTEST_P50, FASTEST_P99 = 0.05, 0.25  # seconds from the line to a watcher
IDLE_SHARE, IDLE_BYTES, STORM_BYTES = 0.01, 60e6, 100e6
NODE_OBJECT = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})


def plans(scale: float) -> list[StormPlan]:
    """The storms; ``scale`` shortens them for a trial."""
    blend = mixed(field_cases())
    return [
        StormPlan("800,000 lines of one code", STORM, int(800_000 * scale), STORM_RATE),
        StormPlan("56,000 mixed lines in 3 s", blend, int(56_000 * scale), STORM_RATE),
        StormPlan("800,000 lines at once", STORM, int(800_000 * scale), None),
    ]


def measured(agents: Sequence[Agent], arguments: argparse.Namespace) -> dict[str, Readings]:
    """Every agent's readings, by its name."""
    found = {agent.name: Readings() for agent in agents}
    writer, storms = KernelWriter(), plans(arguments.scale)
    try:
        for number in range(arguments.rounds):
            for agent in agents:
                _say(f"round {number + 1}: {agent.name}")
                into = found[agent.name]
                if not number:
                    idle(agent, writer, into, arguments.idle)
                for _ in range(arguments.starts):
                    latency(agent, writer, into)
                for plan in storms:
                    storm(agent, writer, plan, into)
        for agent in agents:
            if agent.name in arguments.no_field:
                continue
            _say(f"lines of the field: {agent.name}")
            field_lines(agent, writer, field_cases(), found[agent.name])
    finally:
        writer.close()
    return found


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {what}", file=sys.stderr)


def targets(ours: Readings) -> list[tuple[str, bool]]:
    """What our agent must reach, and whether it did."""
    p50, p99 = percentile(ours.latency, 0.5), percentile(ours.latency, 0.99)
    storms = [one for many in ours.storms.values() for one in many]
    paced = [one for name, many in ours.storms.items() for one in many if "at once" not in name]
    return [
        (f"p50 within {FASTEST_P50 * 1000:.0f} ms", p50 is not None and p50 <= FASTEST_P50),
        (f"p99 within {FASTEST_P99 * 1000:.0f} ms", p99 is not None and p99 <= FASTEST_P99),
        (f"idle below {IDLE_SHARE:.0%} of one core", all(share < IDLE_SHARE for share in ours.idle_share)),
        (f"idle below {IDLE_BYTES / 1e6:.0f} MB resident", all(size < IDLE_BYTES for size in ours.resident)),
        (f"storms below {STORM_BYTES / 1e6:.0f} MB", all(one.cost.peak < STORM_BYTES for one in storms)),
        ("no other fault lost in a storm", all(None not in one.others for one in paced)),
        ("the next fault seen after each storm", all(one.after is not None for one in storms)),
    ]


def _peers(arguments: argparse.Namespace) -> list[PeerCommand]:
    says = dict(text.split("=", 1) for text in arguments.says)
    found = []
    for text in arguments.peer:
        name, sign, command = text.partition("=")
        if not sign:
            raise SystemExit(f"--peer {text!r} names no command; give it as NAME=COMMAND")
        found.append(PeerCommand(name, command, says.pop(name, None)))
    if says:
        raise SystemExit(f"--says for {', '.join(says)}, but no --peer of that name")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="may be given many times")
    parser.add_argument(
        "--says", action="append", default=[], metavar="NAME=REGEX", help="lines of its output that are reports"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--starts", type=int, default=4, help="of an agent a round, for its latency; %(default)s")
    parser.add_argument("--idle", type=float, default=65.0, help="seconds of idling (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each storm's lines (default: all)")
    parser.add_argument("--no-field", action="append", default=[], metavar="NAME", help="no lines of the field for it")
    parser.add_argument("--json", type=Path, help="file for all readings")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    commands = _peers(arguments)
    if os.geteuid() != 0:
        raise SystemExit("/dev/kmsg takes lines from root only; run this as root")
    if not built(binaries_dir()):
        raise SystemExit("Kubernetes is not built yet; run `everstep lab setup`")
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder, unlimited():
        api = ApiServer(binaries_dir(), Path(folder) / "api")
        try:
            _prepare(api)
            agents: list[Agent] = [Everstep(api, Path(folder) / "everstep")]
            agents += [Peer(one, api, Path(folder) / one.name) for one in commands]
            versions = {agent.name: agent.version() for agent in agents}
            found = measured(agents, arguments)
        finally:
            api.stop()
    return _conclude(found, versions, arguments)


def _prepare(api: ApiServer) -> None:
    api.start()
    api.kubectl("apply", "-f", str(ROOT / "charts" / "everstep" / "crds"))
    api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    api.kubectl("create", "namespace", "everstep-node-lease")
    api.kubectl("apply", "-f", "-", text=NODE_OBJECT)


def _conclude(found: dict[str, Readings], versions: dict[str, str], arguments: argparse.Namespace) -> int:
    date = time.strftime("%Y-%m-%d", time.gmtime())
    cores = os.cpu_count()
    print(f"{date}, {platform.machine()}, {cores} cores, Linux {platform.release()}, {arguments.rounds} rounds\n")
    print(rendered(found, versions, [plan.name for plan in plans(arguments.scale)]))
    print()
    verdicts = targets(found["everstep"])
    for what, reached in verdicts:
        print(f"{'yes' if reached else 'NO '} {what}")
    if arguments.json:
        text = {"date": date, "versions": versions, "readings": {name: asdict(one) for name, one in found.items()}}
        arguments.json.write_text(json.dumps(text, indent=1))
    return 0 if all(reached for _, reached in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
