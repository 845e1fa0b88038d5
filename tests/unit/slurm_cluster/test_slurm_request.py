"""`everstep slurm create` over a cluster that exists: what no option names stays, and numbers are never handed on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everstep.adapters.kube.verbs import Verbs
from everstep.api.slurm_cluster import SlurmClusterSpec
from everstep.apps.slurm_request import VERSIONS, Request, create_cluster, free_uid, read_user, wanted
from everstep.core.errors import InvalidInput
from everstep.lab.images import SLURM_VERSIONS

EXISTING = {
    "slurmVersion": "26.05",
    "image": "example.org/slurm:own",
    "nodePools": [
        {"name": "big", "selector": {"matchLabels": {"everstep.io/pool": "big"}}, "gpus": {"count": 8}, "cpus": 64}
    ],
    "partitions": [{"name": "night", "nodePools": ["big"]}],
    "users": [{"name": "ada", "uid": 2001, "sshKeys": ["ssh-ed25519 AAAA"]}],
    "storage": {"home": {"storageClassName": "fast", "size": "7Ti"}},
    "config": {"slurm": {"Prolog": "/bin/true"}, "processTracking": "LinuxProc"},
}
KEYS = ("ssh-ed25519 BBBB",)


def ask(request: Request, existing: dict[str, Any] | None) -> tuple[SlurmClusterSpec, list[str]]:
    """What would be applied, and what the person is told."""

    def answer(asked: httpx2.Request) -> httpx2.Response:
        if asked.url.path.endswith("/slurmclusters/crew"):
            if existing is None:
                return httpx2.Response(404, json={"message": "not found"})
            return httpx2.Response(200, json={"metadata": {"generation": 1}, "spec": existing})
        if asked.url.path.endswith("/storageclasses"):
            names = [{"metadata": {"name": name}, "provisioner": "example.org/nfs"} for name in ("fast", "slow")]
            return httpx2.Response(200, json={"items": names[: 1 if existing is None else 2]})
        assert asked.url.path == "/api/v1/nodes"
        node = {"metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}
        return httpx2.Response(200, json={"items": [node]})

    told: list[str] = []

    async def run() -> SlurmClusterSpec:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://api") as http:
            return await wanted(Verbs(http), request, told.append)

    return asyncio.run(run()), told


def test_a_new_cluster_gets_the_defaults() -> None:
    spec, _ = ask(Request("slurm", "crew", users=(("ada", None, KEYS),)), None)
    assert (spec.slurm_version, spec.storage.home.size, spec.storage.home.storage_class_name) == (
        "24.11", "100Gi", "fast",
    )  # fmt: skip
    assert [(p.name, p.gpus and p.gpus.count) for p in spec.node_pools] == [("main", 2)]
    assert [(p.name, p.default) for p in spec.partitions] == [("main", True)]


def test_what_is_not_named_stays_as_it_is() -> None:
    """Above all the release: slurmctld of an earlier one would not read the state of the later one."""
    spec, told = ask(Request("slurm", "crew", users=(("ada", None, KEYS), ("bob", None, KEYS))), EXISTING)
    assert (spec.slurm_version, spec.image, spec.storage.home.size) == ("26.05", "example.org/slurm:own", "7Ti")
    assert [(p.name, p.cpus) for p in spec.node_pools] == [("big", 64)]
    assert [p.name for p in spec.partitions] == ["night"]
    assert spec.config.slurm == {"Prolog": "/bin/true"}
    assert [(u.name, u.uid) for u in spec.users] == [("ada", 2001), ("bob", free_uid("bob", set()))]
    assert told == []


def test_no_user_option_removes_nobody_and_a_removal_is_said() -> None:
    spec, told = ask(Request("slurm", "crew", size="8Ti"), EXISTING)
    assert [u.name for u in spec.users] == ["ada"]
    assert told == []
    spec, told = ask(Request("slurm", "crew", users=(("bob", None, KEYS),)), EXISTING)
    assert [u.name for u in spec.users] == ["bob"]
    assert len(told) == 1
    assert "ada" in told[0]


def test_a_user_who_left_leaves_no_number_behind() -> None:
    """Files on the volume belong to numbers, and the volume outlives users and even the SlurmCluster."""
    (bob,) = ask(Request("slurm", "crew", users=(("bob", None, KEYS),)), None)[0].users
    (eve,) = ask(Request("slurm", "crew", users=(("eve", None, KEYS),)), None)[0].users
    assert bob.uid != eve.uid
    assert free_uid("bob", set()) == bob.uid
    assert free_uid("bob", {bob.uid}) not in {bob.uid, eve.uid}
    everybody = {number for name in range(2000) for number in [free_uid(f"user{name}", set())]}
    assert min(everybody) >= 10_000
    assert max(everybody) < 60_000
    assert free_uid("last", set(range(10_000, 59_999))) == 59_999


@pytest.mark.parametrize("text", ["ada", "ada:", ":file", "ada:/nope", "ada:\u00b2:/nope", "ada:0x1:/nope"])
def test_a_user_option_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--user"):
        read_user(text)


def test_a_user_named_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ada is named twice"):
        ask(Request("slurm", "crew", users=(("ada", None, KEYS), ("ada", None, KEYS))), None)


@pytest.mark.parametrize(
    ("namespace", "name"), [("slurm", "../x"), ("slurm", "A"), ("slurm", "1"), ("a/b", "x"), ("", "x")]
)
def test_a_name_is_no_path(tmp_path: Path, namespace: str, name: str) -> None:
    with pytest.raises(InvalidInput, match="small letters"):
        asyncio.run(create_cluster(tmp_path / "none", Request(namespace, name), None, print))


def test_a_release_that_there_is_no_image_for_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--slurm 1\.0: choose one of 22\.05, 24\.11, 26\.05"):
        asyncio.run(create_cluster(tmp_path / "none", Request("slurm", "crew", version="1.0"), None, print))
    assert VERSIONS == SLURM_VERSIONS
