"""The lab's certificate authority, certificates and kubeconfig files (ECDSA, by openssl)."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

from everstep.lab.layout import SERVICE_KUBERNETES, Addresses, LabLayout
from everstep.lab.processes import run

_OPENSSL = """[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
authorityKeyIdentifier = keyid
"""
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"]
# file name, common name, organisation: what each component is to Kubernetes' authorisers
_USERS = [
    ("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters"),
    ("admin", "lab-admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("proxy", "system:kube-proxy", ""),
]


async def create_pki(layout: LabLayout, addresses: Addresses) -> None:
    """Writes everything of the control plane under `layout.pki` (mode 0700) in about a quarter of a second."""
    pki = layout.pki
    pki.mkdir(mode=0o700, parents=True, exist_ok=True)
    (pki / "openssl.cnf").write_text(_OPENSSL)
    _write_secret(layout.machine_token, secrets.token_urlsafe(32))
    request = ["openssl", "req", "-x509", "-config", str(pki / "openssl.cnf")]
    await asyncio.gather(
        run(*request, *_KEY, "-extensions", "authority", "-subj", f"/CN=everstep-lab-{layout.name}",
            "-keyout", str(pki / "ca.key"), "-out", str(pki / "ca.crt")),
        # SEC 1 form: Kubernetes reads no PKCS #8 here
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout",
            "-out", str(pki / "service-accounts.key")),
    )  # fmt: skip
    names = ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
    server = [*(f"DNS:{name}" for name in names), *(f"IP:{ip}" for ip in (addresses.gateway, SERVICE_KUBERNETES))]
    await asyncio.gather(
        create_certificate(layout, "apiserver", "kube-apiserver", "", ",".join(server)),
        *(create_certificate(layout, *user) for user in _USERS),
    )
    for name, _, _ in _USERS[1:]:
        write_kubeconfig(layout, addresses, name)


async def create_certificate(
    layout: LabLayout, name: str, common_name: str, organisation: str, alternatives: str = ""
) -> None:
    """Writes `<name>.key` and `<name>.crt`; `alternatives` as openssl's subjectAltName."""
    pki = layout.pki
    subject = (f"/O={organisation}" if organisation else "") + f"/CN={common_name}"
    await run(
        "openssl", "req", "-x509", "-config", str(pki / "openssl.cnf"), *_KEY, "-extensions", "leaf",
        "-subj", subject, "-addext", f"subjectAltName={alternatives or 'DNS:' + name}",
        "-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key"),
        "-keyout", str(pki / f"{name}.key"), "-out", str(pki / f"{name}.crt"),
    )  # fmt: skip


def write_kubeconfig(layout: LabLayout, addresses: Addresses, user: str) -> None:
    pki = layout.pki
    _write_secret(
        layout.kubeconfig(user),
        f"""apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: "{addresses.api}", certificate-authority: "{pki / "ca.crt"}"}}}}]
users: [{{name: {user}, user: {{client-certificate: "{pki / user}.crt", client-key: "{pki / user}.key"}}}}]
contexts: [{{name: {layout.name}, context: {{cluster: lab, user: {user}}}}}]
current-context: {layout.name}
""",
    )


def _write_secret(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
