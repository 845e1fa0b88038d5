"""The control plane's daemons: which program with which arguments."""

from __future__ import annotations

from pathlib import Path

from everstep.lab.layout import API_PORT, SERVICE_RANGE, Addresses, LabLayout

Daemon = dict[str, object]
# A lab is born all at once: Kubernetes' own limit of 20 requests a second would cost it seconds.
_UNTHROTTLED = ("--kube-api-qps=300", "--kube-api-burst=600")
_ETCD = "127.0.0.1:2379"


def _etcd(layout: LabLayout) -> list[str]:
    return [
        "etcd",
        f"--data-dir={layout.control / 'etcd'}",
        "--unsafe-no-fsync",  # a lab's data need not survive the machine
        f"--listen-client-urls=http://{_ETCD}",
        f"--advertise-client-urls=http://{_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    ]


def _apiserver(layout: LabLayout, addresses: Addresses) -> list[str]:
    pki = layout.pki
    return [
        "kube-apiserver",
        f"--etcd-servers=http://{_ETCD}",
        f"--bind-address={addresses.gateway}",
        f"--advertise-address={addresses.gateway}",
        f"--secure-port={API_PORT}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--allow-privileged",
    ]


def _controller_manager(layout: LabLayout) -> list[str]:
    pki = layout.pki
    return [
        "kube-controller-manager",
        "--leader-elect=false",
        f"--kubeconfig={layout.kubeconfig('controller-manager')}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        # Kubernetes' own default is 50 s. Kubelets here report every 10 s over a bridge that loses nothing, so a dead
        # node is known after 20 s; Everstep's own heartbeat Lease does not depend on it.
        "--node-monitor-grace-period=20s",
        *_UNTHROTTLED,
    ]


def _scheduler(layout: LabLayout) -> list[str]:
    return ["kube-scheduler", "--leader-elect=false", f"--kubeconfig={layout.kubeconfig('scheduler')}", *_UNTHROTTLED]


def control_daemons(layout: LabLayout, addresses: Addresses) -> list[Daemon]:
    """What init.py starts in the control plane's namespaces, with what each waits for."""
    logs: Path = layout.control / "log"
    api = f"{addresses.gateway}:{API_PORT}"
    programs: list[tuple[str, list[str], list[str]]] = [
        ("etcd", _etcd(layout), []),
        ("kube-apiserver", _apiserver(layout, addresses), [_ETCD]),
        ("kube-controller-manager", _controller_manager(layout), [api]),
        ("kube-scheduler", _scheduler(layout), [api]),
    ]
    return [
        {"name": name, "argv": argv, "after": after, "log": str(logs / f"{name}.log")} for name, argv, after in programs
    ]
