"""The Scheduler contract on real Slurm in a real cluster, callers reviewed by its API server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from everstep.adapters.slurm.client import GatewayScheduler
from everstep.api.gateway import AUDIENCE, PORT
from everstep.apps.slurm_operator.desired import CLUSTER_LABEL, ROLE_LABEL
from everstep.core.errors import Refused
from everstep.lab.cluster import Lab
from everstep.testing.real_slurm import RealSlurm
from everstep.testing.scheduler_contract import SchedulerContract
from everstep.testing.slurm_world import SlurmWorld

pytestmark = pytest.mark.lab

NAMESPACE = "contract"
NAME = "contract"
SYSTEM = "everstep-system"


@pytest.fixture(scope="module")
def gateway(lab: Lab) -> Iterator[str]:
    """The address of the gateway of a Slurm cluster over the lab's pool; the cluster is gone afterwards."""
    create = [sys.executable, "-m", "everstep.apps.cli", "slurm", "create", NAME, "--namespace", NAMESPACE, "--wait"]
    create += ["--slurm", str(lab.config.slurm), "--kubeconfig", str(lab.kubeconfig)]
    made = subprocess.run(create, capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    try:
        yield f"http://{_pod(lab, 'gateway', '{.status.podIP}')}:{PORT}"
    finally:
        lab.kubectl("delete", "namespace", NAMESPACE, "--wait", seconds=120)


def _pod(lab: Lab, role: str, path: str) -> str:
    selector = f"{CLUSTER_LABEL}={NAME},{ROLE_LABEL}={role}"
    found = lab.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", f"jsonpath={{.items[0]{path[1:]}")
    assert found, f"no {role} pod in namespace {NAMESPACE}"
    return found


def _token(lab: Lab, account: str, namespace: str = SYSTEM, audience: str = AUDIENCE) -> str:
    return lab.kubectl("create", "token", account, "-n", namespace, "--audience", audience).strip()


class TestSlurmInTheLab(SchedulerContract):
    lab: Lab
    url: str

    @pytest.fixture(autouse=True)
    def _lab(self, lab: Lab, gateway: str) -> None:
        self.lab, self.url = lab, gateway

    # Two minutes long, and the same promise is proven in heals/test_patience.py, with a real training job.
    test_a_deaf_job_is_killed_after_kill_wait = None  # type: ignore[assignment]

    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[SlurmWorld]:
        lab, cluster = self.lab, f"{NAMESPACE}/{NAME}"
        login, token = _pod(lab, "login", "{.metadata.name}"), _token(lab, "everstep-controller")

        async def shell(arguments: Sequence[str]) -> str:
            return await asyncio.to_thread(
                lab.kubectl, "exec", "-n", NAMESPACE, login, "-c", "sshd", "--", *arguments, seconds=30
            )

        async def off(node: str) -> None:
            await asyncio.to_thread(lab.power_off, node)

        async def on(node: str) -> None:
            await asyncio.to_thread(lab.power_on, node)

        async with GatewayScheduler(lambda: [(cluster, self.url)], lambda: token) as scheduler:
            yield RealSlurm(scheduler, cluster, 120.0, shell, off, on, width=1)


@pytest.mark.parametrize(
    ("account", "namespace", "audience"),
    [("default", "default", AUDIENCE), ("everstep-controller", SYSTEM, "https://kubernetes.default.svc")],
)
def test_a_stranger_and_a_token_for_another_door_are_turned_away(
    lab: Lab, gateway: str, account: str, namespace: str, audience: str
) -> None:
    token = _token(lab, account, namespace, audience)

    async def whole() -> None:
        async with GatewayScheduler(lambda: [(f"{NAMESPACE}/{NAME}", gateway)], lambda: token) as scheduler:
            with pytest.raises(Refused):
                await scheduler.progress(f"{NAMESPACE}/{NAME}", "1", "ada")
            assert not (await scheduler.snapshots()).answered

    asyncio.run(whole())
