"""Installs Everstep on the lab as on any cluster: with its Helm chart."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lightkube import AsyncClient

from everstep.lab import kubeapi
from everstep.lab.layout import MACHINE_API_PORT
from everstep.lab.processes import run
from everstep.lab.switchboard import Switchboard

NAMESPACE = "everstep-system"
RELEASE = "everstep"


def chart() -> Path:
    """The chart of this checkout."""
    return Path(__file__).resolve().parents[3] / "charts" / "everstep"


def lab_values(board: Switchboard) -> dict[str, object]:
    """The chart's values for this lab; a JSON document is a YAML one. Holds the machine API's token."""
    return {
        "image": {"repository": "docker.io/everstep/everstep", "tag": "dev", "pullPolicy": "IfNotPresent"},
        "agent": {
            "kmsgPath": "/run/everstep/kmsg",
            "runtimeClassName": "",
            "nvmlLibraryPath": "/run/everstep/driver",
            "pciDevicesPath": "/run/everstep/pci",
            "bootIdPath": "/run/everstep/boot_id",
        },
        "policy": {"mode": "Enforce"},
        "provider": {
            "url": f"http://{board.addresses.gateway}:{MACHINE_API_PORT}",
            "token": board.layout.machine_token.read_text(),
        },
    }


def _helm_environment(board: Switchboard) -> dict[str, str]:
    """Helm's and its client's own files belong to the lab, not to the user's home."""
    names = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR")
    return {"NO_PROXY": "*", **{name: str(board.layout.root / "helm") for name in names}}


async def install_everstep(board: Switchboard, client: AsyncClient) -> None:
    """`helm upgrade --install`, then waits until every pod of it is ready. Raises LabError."""
    values = board.layout.pki / "everstep-values.yaml"
    values.touch(mode=0o600)
    values.write_text(json.dumps(lab_values(board), indent=1))
    await run(
        str(board.binaries / "helm"), "upgrade", "--install", RELEASE, str(chart()),
        "--namespace", NAMESPACE, "--create-namespace",
        "--kubeconfig", str(board.layout.kubeconfig()), "--values", str(values),
        seconds=120, environment=_helm_environment(board),
    )  # fmt: skip
    board.milestone("chart installed")
    parts: dict[str, bool] = {}

    async def check() -> bool:
        parts.clear()
        parts.update(await kubeapi.rolled_out(client, NAMESPACE))
        return bool(parts) and all(parts.values())

    def missing() -> str:
        return "not ready: " + (", ".join(name for name, ready in parts.items() if not ready) or "nothing installed")

    started = time.monotonic()
    await kubeapi.until("Everstep runs", check, 90, detail=missing)
    board.report(f"Everstep is ready, {time.monotonic() - started:.1f} s after its chart was installed")
    board.milestone("Everstep ready")
