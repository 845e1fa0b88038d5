"""What a real API server refuses is one plain line on the command line: what is wrong, and how to mend it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.verbs import Verbs
from everstep.apps import cli
from everstep.apps.refusals import in_plain_words
from everstep.core.errors import Conflict, EverstepError, NotFound

from .api_server import ApiServer

CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "nfs"},
    "provisioner": "example.org/nfs",
}


@pytest.fixture(scope="module", autouse=True)
def cluster(api: ApiServer) -> None:
    api.kubectl("apply", "-f", "-", text=json.dumps(CLASS))


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kubeconfig: Path, *arguments: str
) -> str:
    """The one line that the command prints when it fails."""
    monkeypatch.setattr(sys, "argv", ["everstep", *arguments, "--kubeconfig", str(kubeconfig)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


CREATE = ("slurm", "create", "crew", "--namespace", "refusals")


def test_a_value_out_of_range(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert refused(monkeypatch, capsys, api.kubeconfig, *CREATE, "--gpus", "99") == (
        "everstep: SlurmCluster refusals/crew cannot be as asked: "
        "--gpus (spec.nodePools[0].gpus.count): 99 should be less than or equal to 64"
    )
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA\n")
    user = ("--gpus", "2", "--user", f"Ada:{tmp_path / 'key.pub'}")
    assert '--user (spec.users[0].name): "Ada" should match \'^[a-z_]' in refused(
        monkeypatch, capsys, api.kubeconfig, *CREATE, *user
    )
    assert "--size (spec.storage.home.size)" in refused(
        monkeypatch, capsys, api.kubeconfig, *CREATE, "--gpus", "2", "--size", "much"
    )


def test_a_user_without_the_right(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = api.kubectl("create", "token", "default", "--namespace=everstep-system").strip()
    for name, secret in (("stranger", token), ("nobody", "wrong")):
        config = json.loads(api.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = secret
        (tmp_path / name).write_text(json.dumps(config))
    line = refused(monkeypatch, capsys, tmp_path / "stranger", *CREATE, "--gpus", "2")
    assert line.startswith(
        "everstep: SlurmCluster refusals/crew: system:serviceaccount:everstep-system:default may not "
    )
    assert line.endswith("have that right granted, or name another --kubeconfig")
    line = refused(monkeypatch, capsys, tmp_path / "nobody", "slurm", "status", "crew")
    assert line == (
        "everstep: SlurmCluster slurm/crew: Kubernetes does not accept these credentials; "
        "log in anew, or name another --kubeconfig"
    )


def test_a_namespace_that_is_being_deleted(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.kubectl("create", "namespace", "going")
    api.kubectl("delete", "namespace", "going", "--wait=false")  # nobody here finishes that
    line = refused(monkeypatch, capsys, api.kubeconfig, "slurm", "create", "crew", "-n", "going", "--gpus", "2")
    assert "its namespace is being deleted; wait until it is gone, or choose another --namespace" in line


def plainly(api: ApiServer, call: Callable[[Verbs], Awaitable[object]]) -> EverstepError:
    async def run() -> None:
        async with connect(api.kubeconfig) as http:
            with in_plain_words("Thing a/b"):
                await call(Verbs(http))

    with pytest.raises(EverstepError) as caught:
        asyncio.run(run())
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_a_kind_that_is_not_installed_and_an_object_that_somebody_changed(api: ApiServer) -> None:
    missing = plainly(api, lambda verbs: verbs.get("/apis/everstep.io/v1alpha1/things/a", dict[str, object]))
    assert isinstance(missing, NotFound)
    assert str(missing) == "this Kubernetes does not know Things: install Everstep on it first (charts/everstep)"
    old = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "everstep-system", "resourceVersion": "1"}}
    changed = plainly(api, lambda verbs: verbs.replace("/api/v1/namespaces/everstep-system", old))
    assert isinstance(changed, Conflict)
    assert str(changed).startswith("Thing a/b was changed by somebody else at the same moment")
    assert str(changed).endswith("run the command again")
