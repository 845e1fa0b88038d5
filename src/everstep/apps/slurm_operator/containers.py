"""Containers and volumes of the pods of a Slurm cluster, as Kubernetes objects.

Only startup is probed. A daemon that ends is seen by its container's end; and whether a node is well is for Slurm to
say, while each probe by a command costs a process in every pod for ever.
"""

from __future__ import annotations

from typing import Any

from everstep.apps.slurm_operator.desired import Cluster, Settings
from everstep.apps.slurm_pod import layout
from everstep.core.slurm_conf import STATE_FOLDER, node_conf

Object = dict[str, Any]

# Set for daemons only; what users run finds the training SDK and nothing of the platform.
_PYTHON = {"name": "PYTHONPATH", "value": "/opt/everstep/code:/opt/everstep/python"}
_USERS_FOLDER = "/var/lib/extrausers"
_CONFIG_MOUNT = {"name": "config", "mountPath": str(layout.CONFIG), "readOnly": True}
_KEYS_MOUNT = {"name": "keys", "mountPath": str(layout.KEYS), "readOnly": True}
_USERS_MOUNT = {"name": "users", "mountPath": _USERS_FOLDER, "readOnly": True}
_MUNGE_MOUNT = {"name": "munge", "mountPath": str(layout.MUNGE_FOLDER)}
_HOME_MOUNT = {"name": "home", "mountPath": "/home"}


def uses_munge(cluster: Cluster) -> bool:
    """Whether munged runs beside each daemon."""
    return cluster.slurm_conf().uses_munge


def container(cluster: Cluster, settings: Settings, name: str, role: str, mounts: list[Object]) -> Object:
    """A container that starts as ``slurm_pod ROLE`` under an init that reaps what daemons leave behind."""
    return {
        "name": name,
        "image": cluster.image(settings),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/tini", "--", "python3", "-m", "everstep.apps.slurm_pod", role],
        "env": [_PYTHON],
        "volumeMounts": mounts,
    }


def controller(cluster: Cluster, settings: Settings) -> list[Object]:
    """slurmctld, and munged where it is needed."""
    mounts = [_CONFIG_MOUNT, _KEYS_MOUNT, _USERS_MOUNT, *_munge(cluster), {"name": "state", "mountPath": STATE_FOLDER}]
    ping = {"exec": {"command": ["scontrol", "ping"]}, "timeoutSeconds": 10}
    return [
        {
            **container(cluster, settings, "slurmctld", "controller", mounts),
            "ports": [{"name": "slurmctld", "containerPort": 6817}],
            "startupProbe": {**ping, "periodSeconds": 1, "failureThreshold": 120},
            # What slurmctld said last stands in the pod's status, where the operator reads it.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        },
    ]


def worker(cluster: Cluster, settings: Settings, pool: str) -> list[Object]:
    """slurmd of one node of the pool, with all of its GPUs."""
    (chosen,) = (p for p in cluster.spec.node_pools if p.name == pool)
    conf = cluster.pool_conf(chosen)
    mounts = [
        _CONFIG_MOUNT,
        _KEYS_MOUNT,
        _USERS_MOUNT,
        *_munge(cluster),
        _HOME_MOUNT,
        {"name": "spool", "mountPath": "/var/spool/slurmd"},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where training processes exchange data
        # auth/slurm looks for its key here; the rest of the configuration comes from the controller.
        *([] if uses_munge(cluster) else [{"name": "slurm-key", "mountPath": str(layout.SLURM_FOLDER)}]),
    ]
    registered = {"exec": {"command": ["test", "-e", str(layout.REGISTERED)]}}
    slurmd = container(cluster, settings, "slurmd", "worker", mounts)
    slurmd["env"] = [
        _PYTHON,
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "EVERSTEP_SLURM_CONTROLLER", "value": cluster.part("slurmctld")},
        {"name": "EVERSTEP_SLURM_NODE_CONF", "value": node_conf(conf)},
    ]
    slurmd |= {
        "ports": [{"name": "slurmd", "containerPort": 6818}],
        "securityContext": {"privileged": True},
        "lifecycle": {"preStop": {"exec": {"command": ["python3", "-m", "everstep.apps.slurm_pod", "leave"]}}},
        # A node that waits for its controller is not broken: the probe outlasts any restart of it.
        "startupProbe": {**registered, "periodSeconds": 1, "failureThreshold": 86_400},
    }
    if conf.gpus:
        slurmd["resources"] = {
            "requests": {"nvidia.com/gpu": str(conf.gpus)},
            "limits": {"nvidia.com/gpu": str(conf.gpus)},
        }
    return [slurmd]


def login(cluster: Cluster, settings: Settings) -> list[Object]:
    """sshd for the users, and beside it the only process that holds Slurm's key."""
    sack: list[Object] = [] if uses_munge(cluster) else [{"name": "sack", "mountPath": str(layout.SACK_FOLDER)}]
    mounts: list[Object] = [
        {"name": "config", "mountPath": str(layout.SLURM_FOLDER), "readOnly": True},
        {"name": "host-keys", "mountPath": "/etc/everstep/ssh", "readOnly": True},
        _USERS_MOUNT,
        _HOME_MOUNT,
        *_munge(cluster),
        *sack,
    ]
    sshd = container(cluster, settings, "sshd", "login", mounts) | {
        "ports": [{"name": "ssh", "containerPort": 22}],
        "startupProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1, "failureThreshold": 60},
    }
    return [sshd]


def gateway(cluster: Cluster, settings: Settings) -> list[Object]:
    """The gateway; it reads the users' homes, so it runs as root with that one capability and no other."""
    mounts = [_CONFIG_MOUNT, _KEYS_MOUNT, _USERS_MOUNT, {**_HOME_MOUNT, "readOnly": True}]
    command = ["/usr/bin/tini", "--", "python3", "-m", "everstep.apps.slurm_gateway"]
    command += ["--cluster", f"{cluster.namespace}/{cluster.name}"]
    command += ["--slurm-conf", str(layout.CONFIG / "client.conf"), "--jwt-key", str(layout.KEYS / "jwt.key")]
    command += [word for caller in settings.gateway_callers for word in ("--allow", caller)]
    probe = {"httpGet": {"path": "/healthz", "port": 6840}}
    return [
        {
            **container(cluster, settings, "gateway", "", mounts),
            "command": command,
            "ports": [{"name": "http", "containerPort": 6840}],
            "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 60},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]},
            },
        }
    ]


def vouching(cluster: Cluster, settings: Settings, role: str) -> list[Object]:
    """Sidecars, there before the daemon starts and until it has ended: munged, or the login node's sackd."""
    if uses_munge(cluster) and role != "gateway":
        mounts: list[Object] = [_KEYS_MOUNT, _MUNGE_MOUNT]
    elif role == "login":
        sack = {"name": "sack", "mountPath": str(layout.SACK_FOLDER)}
        mounts = [_KEYS_MOUNT, _USERS_MOUNT, sack, {"name": "sack-config", "mountPath": str(layout.SLURM_FOLDER)}]
    else:
        return []
    return [{**container(cluster, settings, "vouch", "vouch", mounts), "restartPolicy": "Always"}]


def volumes(cluster: Cluster, containers: list[Object]) -> list[Object]:
    """The volumes that the containers mount."""
    slurm_key = [{"key": "slurm.key", "path": "slurm.key", "mode": 0o400}]
    known: dict[str, Object] = {
        "config": {"configMap": {"name": cluster.part("config")}},
        "users": {"configMap": {"name": cluster.part("users")}},
        "keys": {"secret": {"secretName": cluster.part("keys"), "defaultMode": 0o400}},
        "slurm-key": {"secret": {"secretName": cluster.part("keys"), "items": slurm_key}},
        # sackd looks for its configuration and its key in one folder.
        "sack-config": {
            "projected": {
                "sources": [
                    {"configMap": {"name": cluster.part("config")}},
                    {"secret": {"name": cluster.part("keys"), "items": slurm_key}},
                ]
            }
        },
        "host-keys": {"secret": {"secretName": cluster.part("host-keys"), "defaultMode": 0o400}},
        "home": {"persistentVolumeClaim": {"claimName": cluster.part("home")}},
        "state": {"persistentVolumeClaim": {"claimName": cluster.part("state")}},
        "spool": {"emptyDir": {}},
        "munge": {"emptyDir": {"medium": "Memory"}},
        "sack": {"emptyDir": {"medium": "Memory"}},
        "shm": {"emptyDir": {"medium": "Memory"}},
    }
    used = dict.fromkeys(mount["name"] for c in containers for mount in c["volumeMounts"])
    return [{"name": name, **known[name]} for name in used]


def _munge(cluster: Cluster) -> list[Object]:
    return [_MUNGE_MOUNT] if uses_munge(cluster) else []
