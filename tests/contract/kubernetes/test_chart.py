"""The Helm chart: what it renders, what it refuses, and that a real API server takes all of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.apps.agent.local_sources import from_environment
from everstep.apps.gpu_settings import GpuSettings
from everstep.lab.binaries import binaries_dir, built
from everstep.lab.nodes import NODE_ENVIRONMENT

from .api_server import ApiServer
from .rendering import helm_template, rendered

LAB = (
    "agent.kmsgPath=/run/everstep/kmsg",
    "agent.runtimeClassName=",
    "agent.nvmlLibraryPath=/run/everstep/driver",
    "agent.pciDevicesPath=/run/everstep/pci",
    "agent.bootIdPath=/run/everstep/boot_id",
    "provider.url=http://198.18.0.1:7070",
    "provider.token=s3cret",
    "policy.mode=Enforce",
    "controller.replicas=2",
)


@pytest.fixture(scope="module")
def helm() -> Path:
    binaries = binaries_dir()
    assert built(binaries), "Helm is not built yet; run `make test`, or `everstep lab setup`"
    return binaries


def one(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_api_server_takes_every_object(api: ApiServer) -> None:
    for settings in ((), LAB):
        documents = {"apiVersion": "v1", "kind": "List", "items": rendered(api.binaries, *settings)}
        taken = api.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", text=json.dumps(documents))
        assert len(taken.splitlines()) == len(documents["items"])


def test_a_fresh_installation_only_watches(helm: Path) -> None:
    assert one(rendered(helm), "RemediationPolicy", "default")["spec"] == {"mode": "DryRun"}


def test_the_policy_takes_further_fields(helm: Path) -> None:
    policy = one(
        rendered(helm, "policy.mode=Enforce", "policy.spec.budget.maxConcurrent=2"), "RemediationPolicy", "default"
    )
    assert policy["spec"] == {"mode": "Enforce", "budget": {"maxConcurrent": 2}}


def test_only_the_agent_that_reads_a_device_is_privileged(helm: Path) -> None:
    on_a_node = container(one(rendered(helm), "DaemonSet", "everstep-agent"))
    assert on_a_node["securityContext"]["privileged"] is True
    in_a_lab = container(one(rendered(helm, *LAB), "DaemonSet", "everstep-agent"))
    assert "privileged" not in in_a_lab["securityContext"]
    assert in_a_lab["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    pods = [one(rendered(helm, *how), "DaemonSet", "everstep-agent")["spec"]["template"]["spec"] for how in ((), LAB)]
    assert [pod.get("hostPID", False) for pod in pods] == [True, False]
    for name in ("everstep-controller", "everstep-slurm-operator"):
        context = container(one(rendered(helm), "Deployment", name))["securityContext"]
        assert context["runAsNonRoot"]
        assert context["readOnlyRootFilesystem"]


def test_an_agent_that_reads_the_journal_is_not_privileged(helm: Path) -> None:
    daemon_set = one(rendered(helm, "agent.kmsgPath=journal"), "DaemonSet", "everstep-agent")
    agent, pod = container(daemon_set), daemon_set["spec"]["template"]["spec"]
    assert "privileged" not in agent["securityContext"]
    assert "hostPID" not in pod
    (volume,) = [each for each in pod["volumes"] if each["name"] == "kernel-log"]
    assert volume["hostPath"] == {"path": "/var/log/journal", "type": "Directory"}
    assert {"name": "kernel-log", "mountPath": "/var/log/journal", "readOnly": True} in agent["volumeMounts"]
    options = from_environment({each["name"]: each.get("value", "") for each in agent["env"]})
    assert (options.kernel_log, options.journal_folder) == ("journal", Path("/var/log/journal"))
    assert "--kmsg=journal" in agent["args"]


def test_a_check_in_the_agents_container_goes_by_the_agents_settings(helm: Path) -> None:
    agent = container(one(rendered(helm, *LAB, "agent.allowInjected=true"), "DaemonSet", "everstep-agent"))
    environment = {each["name"]: each.get("value") for each in agent["env"]}
    assert f"--kmsg={environment['EVERSTEP_KMSG']}" in agent["args"]
    assert environment["EVERSTEP_ALLOW_INJECTED"] == "true"
    on_a_node = container(one(rendered(helm), "DaemonSet", "everstep-agent"))["env"]
    assert {"name": "EVERSTEP_KMSG", "value": "/dev/kmsg"} in on_a_node
    assert "EVERSTEP_ALLOW_INJECTED" not in [each["name"] for each in on_a_node]


def test_real_nodes_get_the_drivers_library_from_nvidias_runtime(helm: Path) -> None:
    pod = one(rendered(helm), "DaemonSet", "everstep-agent")["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert pod["runtimeClassName"] == "nvidia"
    assert GpuSettings.from_environment(environment) == GpuSettings()
    assert (environment["NVIDIA_VISIBLE_DEVICES"], environment["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")


def test_without_that_runtime_the_library_is_mounted_from_the_node(helm: Path) -> None:
    folder = "/home/kubernetes/bin/nvidia/lib64"
    settings = ("agent.runtimeClassName=", f"agent.nvmlLibraryPath={folder}")
    pod = one(rendered(helm, *settings), "DaemonSet", "everstep-agent")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in pod
    mount = {"name": "nvml-library", "mountPath": folder, "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert {"name": "nvml-library", "hostPath": {"path": folder, "type": "Directory"}} in pod["volumes"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert GpuSettings.from_environment(environment).nvml_library == Path(folder)


def test_a_lab_stands_in_for_driver_bus_and_boot(helm: Path) -> None:
    agent = container(one(rendered(helm, *LAB), "DaemonSet", "everstep-agent"))
    environment = {each["name"]: each.get("value") or "" for each in agent["env"]}
    run = Path("/run/everstep")
    assert GpuSettings.from_environment(environment) == GpuSettings(
        nvml_library=run / "driver", pci_devices=run / "pci", boot_id=run / "boot_id"
    )
    assert [mount["mountPath"] for mount in agent["volumeMounts"]] == [str(run)]
    assert NODE_ENVIRONMENT.items() <= environment.items()


SITE_ROW = "kind,code,action\nxid,79,replaceNode\n"


def test_the_sites_own_faults_reach_the_agent(helm: Path, tmp_path: Path) -> None:
    (tmp_path / "site.csv").write_text(SITE_ROW)
    documents = rendered(helm, files={"agent.siteFaults.table": tmp_path / "site.csv"})
    assert one(documents, "ConfigMap", "everstep-site-faults")["data"] == {"site-faults.csv": SITE_ROW}
    agents = one(documents, "DaemonSet", "everstep-agent")["spec"]["template"]
    (tmp_path / "site.csv").write_text(SITE_ROW.replace("replaceNode", "rebootNode"))
    changed = rendered(helm, files={"agent.siteFaults.table": tmp_path / "site.csv"})
    again = one(changed, "DaemonSet", "everstep-agent")["spec"]["template"]
    assert agents["metadata"]["annotations"] != again["metadata"]["annotations"], "or no agent would read it"
    environment = {each["name"]: each.get("value") for each in container({"spec": {"template": agents}})["env"]}
    (mount,) = [
        each for each in container({"spec": {"template": agents}})["volumeMounts"] if each["name"] == "site-faults"
    ]
    assert environment["EVERSTEP_SITE_FAULTS"] == f"{mount['mountPath']}/site-faults.csv"
    (volume,) = [each for each in agents["spec"]["volumes"] if each["name"] == "site-faults"]
    assert volume["configMap"]["name"] == "everstep-site-faults"


def test_a_config_map_of_the_sites_own_is_used_as_it_is(helm: Path) -> None:
    documents = rendered(helm, "agent.siteFaults.existingConfigMap=our-faults")
    assert not [each for each in documents if each["kind"] == "ConfigMap"]
    (volume,) = [
        each
        for each in one(documents, "DaemonSet", "everstep-agent")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "site-faults"
    ]
    assert volume["configMap"]["name"] == "our-faults"


def test_without_a_table_of_the_site_nothing_is_mounted(helm: Path) -> None:
    assert "site-faults" not in json.dumps(rendered(helm))


def test_what_a_site_says_of_its_nodes_reaches_agent_and_check(helm: Path) -> None:
    settings = (
        "agent.sources.dcgmUrl=http://$(NODE_IP):9400/metrics",
        "agent.sources.expectMounts={/home,/scratch}",
        "agent.sources.expectPorts={mlx5_0/1}",
        "agent.sources.without={AMD GPUs}",
    )
    variables = container(one(rendered(helm, *settings), "DaemonSet", "everstep-agent"))["env"]
    options = from_environment({each["name"]: each.get("value", "") for each in variables})
    assert options.dcgm_url == "http://$(NODE_IP):9400/metrics"
    names = [each["name"] for each in variables]
    assert names.index("NODE_IP") < names.index("EVERSTEP_DCGM_URL"), "or Kubernetes would not put it in"
    assert options.expected_mounts == ("/home", "/scratch")
    assert options.expected_ports == ("mlx5_0/1",)
    assert options.without == ("AMD GPUs",)


def test_every_mount_of_the_node_is_read_only(helm: Path) -> None:
    agent = one(rendered(helm, *LAB), "DaemonSet", "everstep-agent")
    assert all(mount["readOnly"] for mount in container(agent)["volumeMounts"])
    assert agent["spec"]["template"]["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_nobody_has_all_rights_and_nobody_reads_secrets_but_the_operator(helm: Path) -> None:
    for role in (each for each in rendered(helm) if each["kind"] in ("ClusterRole", "Role")):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert role["metadata"]["name"] == "everstep-slurm-operator"


def test_the_machine_token_is_in_its_secret_only(helm: Path) -> None:
    documents = rendered(helm, *LAB)
    secret = one(documents, "Secret", "everstep-machine-api")
    assert secret["stringData"] == {"token": "s3cret"}
    others = json.dumps([each for each in documents if each is not secret])
    assert "s3cret" not in others
    own = rendered(helm, "provider.url=http://m", "provider.existingSecret=mine")
    assert not [each for each in own if each["kind"] == "Secret"]
    assert '"secretName": "mine"' in json.dumps(own)


def test_the_controller_speaks_to_gateways_with_a_token_for_them_alone(helm: Path) -> None:
    controller = one(rendered(helm), "Deployment", "everstep-controller")
    (volume,) = [each for each in controller["spec"]["template"]["spec"]["volumes"] if each["name"] == "slurm-gateway"]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "slurm-gateway.everstep.io"


CONTROLLER = "system:serviceaccount:everstep-system:everstep-controller"
EPISODE = {"device": "1650001", "code": "xid:48", "at": "2026-11-29T20:00:00Z"}
HEALTH = {
    "apiVersion": "everstep.io/v1alpha1", "kind": "NodeHealth", "metadata": {"name": "with-a-past"},
    "status": {"verdict": "Faulty", "reason": "a GPU is gone", "gpus": [{"index": 0, "uuid": "GPU-a"}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def governed(api: ApiServer) -> ApiServer:
    """The API server with the controller's rights, and the policy on what it may write of a NodeHealth."""
    documents = [each for each in rendered(api.binaries) if each["metadata"]["name"].startswith("everstep-controller")]
    rules = [each for each in documents if each["kind"].startswith(("ClusterRole", "ValidatingAdmission"))]
    api.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": rules}))
    api.kubectl("apply", "-f", "-", text=json.dumps(HEALTH))
    give_up = time.monotonic() + 20.0
    while "Forbidden" not in patched(api, {"verdict": "Healthy"}):
        assert time.monotonic() < give_up, "the policy never came into force"
        time.sleep(0.1)
        api.kubectl("apply", "-f", "-", text=json.dumps(HEALTH))
    return api


def patched(api: ApiServer, status: dict[str, Any]) -> str:
    """The refusal of what the controller tries to write, "" when it was taken."""
    try:
        patch = json.dumps({"status": status})
        api.kubectl("patch", "nodehealth", "with-a-past", f"--as={CONTROLLER}", "--type=merge", "-p", patch)
    except AssertionError as refused:
        return str(refused)
    return ""


def test_the_controller_may_tell_a_node_its_history_and_nothing_else(governed: ApiServer) -> None:
    assert not patched(governed, {"inherited": [EPISODE]})
    assert not patched(governed, {"inherited": []})
    for said in ({"verdict": "Healthy"}, {"reason": "all is well"}, {"gpus": []}, {"gpus": None}, {"bootID": "b"}):
        assert "nothing but status.inherited" in patched(governed, said), said
        assert "nothing but status.inherited" in patched(governed, {**said, "inherited": [EPISODE]}), said
    kept = json.loads(governed.kubectl("get", "nodehealth", "with-a-past", "-o", "json"))["status"]
    assert {key: kept[key] for key in HEALTH["status"]} == {**HEALTH["status"], "gpus": kept["gpus"]}


def test_the_controller_may_show_a_verdict_and_may_not_give_one(governed: ApiServer) -> None:
    def may(verb: str, resource: str, group: str = "") -> bool:
        name, _, part = resource.partition("/")
        what = {"verb": verb, "resource": name, "subresource": part, "group": group}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        asked = json.dumps({**review, "spec": {"user": CONTROLLER, "resourceAttributes": what}})
        return bool(json.loads(governed.kubectl("create", "-o", "json", "-f", "-", text=asked))["status"]["allowed"])

    assert may("patch", "nodes/status")
    assert not may("update", "nodes/status")
    assert not may("delete", "nodes")
    for verb in ("create", "update", "delete"):
        assert not may(verb, "nodehealths", "everstep.io"), "only a node's own agent speaks for it"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("policy.mode=Destroy",), "mode"),
        (("policy.spec.mode=Enforce",), "spec"),
        (("agent.kmsg=/dev/kmsg",), "kmsg"),
        (("controller.replicas=many",), "replicas"),
        (("agent.bootIdPath=/tmp/boot_id",), "must lie in the folder of agent.kmsgPath"),
        (("provider.token=a", "provider.existingSecret=b"), "not both"),
        (("agent.siteFaults.table=a", "agent.siteFaults.existingConfigMap=b"), "not both"),
        (("agent.siteFaults.rows=a",), "rows"),
        (("agent.sources.expectMounts={home}",), "expectMounts"),
    ],
)
def test_wrong_values_are_refused(helm: Path, settings: tuple[str, ...], complaint: str) -> None:
    done = helm_template(helm, *settings)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_another_namespace_is_refused(helm: Path) -> None:
    done = helm_template(helm, namespace="default")
    assert done.returncode != 0
    assert "everstep-system" in done.stderr
