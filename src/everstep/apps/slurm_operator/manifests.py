"""Every Kubernetes object of a Slurm cluster but its Secrets, rendered from the SlurmCluster. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from everstep.api.gateway import PORT as GATEWAY_PORT
from everstep.api.slurm_cluster import NodePool, Volume
from everstep.apps.slurm_operator import containers
from everstep.apps.slurm_operator.desired import CLUSTER_LABEL, Cluster, Settings
from everstep.core import slurm_accounts, slurm_conf
from everstep.core.cluster_state import OUT_OF_SERVICE_LABEL, POOL_LABEL, SPARE_LABEL

Object = dict[str, Any]

# 120 s for the tasks to save (Slurm's KillWait), the rest for Slurm to notice and for slurmd to end.
WORKER_GRACE_SECONDS = 150
CONFIG_HASH = "everstep.io/config-hash"
# srun tells slurmctld this name, and slurmctld calls back: it must resolve to the pod, or jobs hang while completing.
LOGIN_HOST = "login"
# Every step of a node's way into Slurm asks the DNS for slurmctld. One lost packet would cost it the 5 s that a
# resolver waits by default (resolv.conf(5)); asked again each second, an answer may still take five.
RESOLVER_OPTIONS = ({"name": "timeout", "value": "1"}, {"name": "attempts", "value": "5"})


def objects(cluster: Cluster, settings: Settings) -> list[Object]:
    """Everything, in the order in which it is applied. Raises InvalidInput when the object cannot be done as asked."""
    cluster.check()
    return [
        _config(cluster),
        users(cluster),
        *_claims(cluster),
        *_services(cluster),
        *_gateway_identity(cluster),
        _controller(cluster, settings),
        *(_workers(cluster, settings, pool) for pool in cluster.spec.node_pools),
        _login(cluster, settings),
        _gateway(cluster, settings),
    ]


def _object(cluster: Cluster, api: str, kind: str, part: str, body: Object, kept: bool = False) -> Object:
    meta: Object = {"name": cluster.part(part), "namespace": cluster.namespace, "labels": cluster.labels()}
    if not kept:
        meta["ownerReferences"] = [cluster.owner()]
    return {"apiVersion": api, "kind": kind, "metadata": meta, **body}


def _config(cluster: Cluster) -> Object:
    conf = cluster.slurm_conf()
    files = {
        "slurm.conf": slurm_conf.slurm_conf(conf),
        "gres.conf": slurm_conf.gres_conf(conf),
        "cgroup.conf": slurm_conf.cgroup_conf(conf),
        "client.conf": slurm_conf.client_conf(conf),
    }
    return _object(cluster, "v1", "ConfigMap", "config", {"data": files})


def users(cluster: Cluster) -> Object:
    """The users' ConfigMap; pods see a change of it without a restart."""
    accounts = cluster.accounts()
    files = {
        "passwd": slurm_accounts.passwd(accounts),
        "group": slurm_accounts.group(accounts),
        "authorized_keys": slurm_accounts.authorized_keys(accounts),
    }
    return _object(cluster, "v1", "ConfigMap", "users", {"data": files})


def digest(config_map: Object) -> str:
    """Short name of a ConfigMap's content."""
    return hashlib.sha256(repr(sorted(config_map["data"].items())).encode()).hexdigest()[:16]


def _claims(cluster: Cluster) -> list[Object]:
    home = cluster.spec.storage.home
    state = cluster.spec.storage.state or Volume(home.storage_class_name, "1Gi")
    return [_claim(cluster, "home", home, "ReadWriteMany"), _claim(cluster, "state", state, "ReadWriteOnce")]


def _claim(cluster: Cluster, part: str, volume: Volume, mode: str) -> Object:
    spec: Object = {"accessModes": [mode], "resources": {"requests": {"storage": volume.size}}}
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    # No owner: the users' files and Slurm's jobs outlive the object that asked for the cluster.
    return _object(cluster, "v1", "PersistentVolumeClaim", part, {"spec": spec}, kept=True)


def _services(cluster: Cluster) -> list[Object]:
    return [
        # Not headless: its name resolves before the controller runs, so that no "no such host" is remembered, and its
        # address stays when the controller's pod moves. Published early: workers wait at the door.
        _service(cluster, "slurmctld", "controller", 6817, {"publishNotReadyAddresses": True}),
        _service(cluster, "gateway", "gateway", GATEWAY_PORT, {}),
        _login_service(cluster),
        # Host names inside the cluster (gpu-1 finds the pod on gpu-1); the operator keeps its EndpointSlice.
        _object(cluster, "v1", "Service", "nodes", {"spec": {"clusterIP": "None"}}),
    ]


def _service(cluster: Cluster, part: str, role: str, port: int, extra: Object) -> Object:
    spec = {"selector": cluster.labels(role), "ports": [{"name": part, "port": port, "targetPort": port}], **extra}
    return _object(cluster, "v1", "Service", part, {"spec": spec})


def _login_service(cluster: Cluster) -> Object:
    port: Object = {"name": "ssh", "port": 22, "targetPort": 22}
    if cluster.spec.login.node_port is not None:
        port["nodePort"] = cluster.spec.login.node_port
    spec = {"type": "NodePort", "selector": cluster.labels("login"), "ports": [port]}
    return _object(cluster, "v1", "Service", "login", {"spec": spec})


def binding_name(namespace: str, name: str) -> str:
    """Name of the ClusterRoleBinding of a cluster's gateway."""
    return f"everstep-slurm-gateway:{namespace}:{name}"


def _gateway_identity(cluster: Cluster) -> list[Object]:
    return [
        _object(cluster, "v1", "ServiceAccount", "gateway", {"automountServiceAccountToken": True}),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            # A cluster-wide object cannot belong to one of a namespace: the operator deletes it by this label.
            "metadata": {
                "name": binding_name(cluster.namespace, cluster.name),
                "labels": {CLUSTER_LABEL: cluster.name},
            },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "everstep-slurm-gateway",
            },
            "subjects": [{"kind": "ServiceAccount", "name": cluster.part("gateway"), "namespace": cluster.namespace}],
        },
    ]


def _pod(cluster: Cluster, settings: Settings, role: str, inside: list[Object], extra: Object) -> Object:
    nodes = f"{cluster.part('nodes')}.{cluster.namespace}.svc.{settings.cluster_domain}"
    beside = containers.vouching(cluster, settings, role)
    spec: Object = {
        "initContainers": beside,
        "containers": inside,
        "volumes": containers.volumes(cluster, [*inside, *beside]),
        "dnsConfig": {"searches": [nodes], "options": RESOLVER_OPTIONS},
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        **extra,
    }
    meta: Object = {"labels": cluster.labels(role)}
    if role == "controller":
        meta["annotations"] = {CONFIG_HASH: digest(_config(cluster))}
    return {"metadata": meta, "spec": spec}


def _controller(cluster: Cluster, settings: Settings) -> Object:
    extra = {
        **_off_the_pools(cluster),
        "terminationGracePeriodSeconds": 30,
        # Its own name, without a detour over the Service.
        "hostAliases": [{"ip": "127.0.0.1", "hostnames": [cluster.part("slurmctld")]}],
    }
    pod = _pod(cluster, settings, "controller", containers.controller(cluster, settings), extra)
    spec = {
        "serviceName": cluster.part("slurmctld"),
        "replicas": 1,
        "selector": {"matchLabels": cluster.labels("controller")},
        "template": pod,
    }
    return _object(cluster, "apps/v1", "StatefulSet", "slurmctld", {"spec": spec})


def _workers(cluster: Cluster, settings: Settings, pool: NodePool) -> Object:
    role = f"worker-{pool.name}"
    extra = {
        "nodeSelector": pool.selector.match_labels,
        # Not the taint of spares: a spare joins Slurm when it joins the pool.
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "terminationGracePeriodSeconds": WORKER_GRACE_SECONDS,
    }
    pod = _pod(cluster, settings, role, containers.worker(cluster, settings, pool.name), extra)
    spec = {
        "selector": {"matchLabels": cluster.labels(role)},
        # A new template never takes a node from its jobs: a pod is replaced when somebody deletes it.
        "updateStrategy": {"type": "OnDelete"},
        "template": pod,
    }
    return _object(cluster, "apps/v1", "DaemonSet", f"slurmd-{pool.name}", {"spec": spec})


def _login(cluster: Cluster, settings: Settings) -> Object:
    extra = {**_off_the_pools(cluster), "hostname": LOGIN_HOST, "terminationGracePeriodSeconds": 10}
    pod = _pod(cluster, settings, "login", containers.login(cluster, settings), extra)
    return _deployment(cluster, "login", "login", pod)


def _gateway(cluster: Cluster, settings: Settings) -> Object:
    extra = {
        **_off_the_pools(cluster),
        "serviceAccountName": cluster.part("gateway"),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 10,
    }
    pod = _pod(cluster, settings, "gateway", containers.gateway(cluster, settings), extra)
    return _deployment(cluster, "gateway", "gateway", pod)


def _deployment(cluster: Cluster, part: str, role: str, pod: Object) -> Object:
    spec = {"replicas": 1, "selector": {"matchLabels": cluster.labels(role)}, "template": pod}
    return _object(cluster, "apps/v1", "Deployment", part, {"spec": spec})


def _off_the_pools(cluster: Cluster) -> Object:
    """Control pods keep away from nodes that healing may take out of service."""
    labels = [POOL_LABEL, SPARE_LABEL, OUT_OF_SERVICE_LABEL]
    rules: list[Object] = [{"key": label, "operator": "DoesNotExist"} for label in labels]
    for pool in cluster.spec.node_pools:
        wanted = [(key, value) for key, value in pool.selector.match_labels.items() if key not in labels]
        # Of several labels together no single one may be excluded: other nodes can carry it too.
        if len(wanted) == 1 and len(pool.selector.match_labels) == 1:
            rules.append({"key": wanted[0][0], "operator": "NotIn", "values": [wanted[0][1]]})
    term = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
    }


def host_names(cluster: Cluster, addresses: dict[str, str]) -> Object:
    """The EndpointSlice by which pods find each other by Slurm's host names; ``addresses``: host name -> IP."""
    endpoints = [
        {"addresses": [address], "hostname": host, "conditions": {"ready": True}}
        for host, address in sorted(addresses.items())
        if "." not in host  # a host name in DNS has one label; such nodes are found by their address only
    ]
    body = {"addressType": "IPv4", "endpoints": endpoints, "ports": []}
    made = _object(cluster, "discovery.k8s.io/v1", "EndpointSlice", "nodes", body)
    made["metadata"]["labels"] |= {
        "kubernetes.io/service-name": cluster.part("nodes"),
        "endpointslice.kubernetes.io/managed-by": "everstep.io",
    }
    return made
