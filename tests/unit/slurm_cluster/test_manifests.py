"""The Kubernetes objects of a Slurm cluster."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.apps.slurm_operator import manifests
from everstep.core.errors import InvalidInput
from everstep.core.slurm_conf import KILL_WAIT_SECONDS
from tests.unit.slurm_cluster.examples import SETTINGS, SPEC, cluster


def objects(**change: Any) -> dict[tuple[str, str], dict[str, Any]]:
    made = manifests.objects(cluster(**change), SETTINGS)
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def pod(each: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = each["spec"]["template"]["spec"]
    return spec


WORKLOADS = [
    ("StatefulSet", "demo-slurmctld"),
    ("DaemonSet", "demo-slurmd-main"),
    ("Deployment", "demo-login"),
    ("Deployment", "demo-gateway"),
]


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_every_mount_has_its_volume(version: str) -> None:
    made = objects(slurmVersion=version)
    for name in WORKLOADS:
        spec = pod(made[name])
        mounted = {m["name"] for c in [*spec["containers"], *spec["initContainers"]] for m in c["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_only_what_must_outlive_the_cluster_has_no_owner() -> None:
    made = objects()
    free = {name for (_, name), each in made.items() if "ownerReferences" not in each["metadata"]}
    assert free == {"demo-home", "demo-state", "everstep-slurm-gateway:slurm:demo"}


def test_a_worker_leaves_no_task_behind() -> None:
    spec = pod(objects()["DaemonSet", "demo-slurmd-main"])
    assert spec["terminationGracePeriodSeconds"] >= KILL_WAIT_SECONDS + 30
    (slurmd,) = spec["containers"]
    assert slurmd["lifecycle"]["preStop"]["exec"]["command"][-1] == "leave"
    assert slurmd["command"][0] == "/usr/bin/tini"


def test_workers_take_whole_nodes_of_the_pool_and_no_spares() -> None:
    workers = objects()["DaemonSet", "demo-slurmd-main"]
    spec = pod(workers)
    assert workers["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert spec["nodeSelector"] == {"everstep.io/pool": "main"}
    assert [t["key"] for t in spec["tolerations"]] == ["nvidia.com/gpu"]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_pool_without_gpus_asks_for_none() -> None:
    pools = [{"name": "cpu", "selector": {"matchLabels": {"pool": "cpu"}}}]
    workers = objects(nodePools=pools)["DaemonSet", "demo-slurmd-cpu"]
    assert "resources" not in pod(workers)["containers"][0]


def test_control_pods_keep_off_nodes_that_may_be_replaced() -> None:
    pools = [*SPEC["nodePools"], {"name": "b", "selector": {"matchLabels": {"group": "b"}}, "gpus": {"count": 2}}]
    for name in WORKLOADS:
        if name[0] != "DaemonSet":
            affinity = pod(objects(nodePools=pools)[name])["affinity"]["nodeAffinity"]
            (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            rules = {(rule["key"], rule["operator"]) for rule in term["matchExpressions"]}
            assert {("everstep.io/pool", "DoesNotExist"), ("group", "NotIn")} <= rules


def test_users_never_see_slurms_key() -> None:
    sshd = pod(objects()["Deployment", "demo-login"])["containers"][0]
    assert not {"keys", "slurm-key", "sack-config"} & {mount["name"] for mount in sshd["volumeMounts"]}


def test_munge_runs_beside_every_daemon_that_needs_it_and_outlives_it() -> None:
    made = objects(slurmVersion="22.05")
    for name in WORKLOADS:
        beside = pod(made[name])["initContainers"]
        assert [c["restartPolicy"] for c in beside] == ([] if name[1] == "demo-gateway" else ["Always"])


def test_a_new_user_restarts_nothing_and_a_new_setting_only_the_controller() -> None:
    before = objects()
    more = objects(users=[*SPEC["users"], {"name": "bob", "uid": 2002}])
    assert {name for name in before if before[name] != more[name]} == {("ConfigMap", "demo-users")}
    other = objects(config={"slurm": {"SlurmdTimeout": "100"}})
    assert {name for name in before if before[name] != other[name]} == {
        ("ConfigMap", "demo-config"),
        ("StatefulSet", "demo-slurmctld"),
    }


def test_the_gateway_serves_the_controller_only() -> None:
    (gateway,) = pod(objects()["Deployment", "demo-gateway"])["containers"]
    allowed = [b for a, b in zip(gateway["command"], gateway["command"][1:], strict=False) if a == "--allow"]
    assert allowed == list(SETTINGS.gateway_callers)
    assert gateway["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_host_names_resolve_to_the_pods() -> None:
    made = manifests.host_names(cluster(), {"gpu-2": "10.0.0.2", "gpu-1": "10.0.0.1", "a.b": "10.0.0.3"})
    assert [(e["hostname"], e["addresses"]) for e in made["endpoints"]] == [
        ("gpu-1", ["10.0.0.1"]),
        ("gpu-2", ["10.0.0.2"]),
    ]
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "demo-nodes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodePools": [{"name": "a", "selector": {"matchLabels": {}}}]}, "would take every node"),
        ({"nodePools": []}, "nodePools is empty"),
        ({"config": {"slurm": {"KillWait": "5"}}}, "which the operator owns"),
        ({"users": [{"name": "root", "uid": 2001}]}, "the system uses this name"),
    ],
)
def test_refusals(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        objects(**change)
