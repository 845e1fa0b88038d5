"""One Slurm cluster for all heals of a test run, in the run's lab, put right again after each heal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.api.meta import API_VERSION
from everstep.api.slurm_cluster import ProcessTracking
from everstep.lab.cluster import Lab
from everstep.lab.demo import stage
from everstep.lab.demo.cluster_view import ClusterView
from everstep.lab.demo.login import Login, make_key
from tests.lab.heals.ward import SILENT, Ward

LONGEST_TRAINING = 400


@pytest.fixture(scope="package")
def whole_ward(lab: Lab) -> Iterator[Ward]:
    """The Slurm cluster and its user; the breaker is wide open, for here heals are what the day is full of."""
    wide = '{"spec": {"breaker": {"maxStarts": 1000, "maxEscalations": 1000}}}'
    lab.kubectl("patch", "remediationpolicy", "default", "--type=merge", "-p", wide)
    with tempfile.TemporaryDirectory(prefix="everstep-heals-") as folder, ClusterView(lab) as view:
        login = stage.create_slurm(lab, view, make_key(Path(folder)), str(lab.config.slurm), SILENT)
        stage.bring_examples(login)
        scene = stage.Scene(lab, login, view)
        reference = stage.reference_run(login, stage.DemoOptions(wanted_steps=LONGEST_TRAINING), SILENT)
        try:
            yield Ward(scene, reference)
        finally:
            login.close()
            lab.kubectl("delete", "namespace", stage.NAMESPACE, "--wait", seconds=120)


@pytest.fixture(scope="module", params=ProcessTracking)
def place(request: pytest.FixtureRequest, whole_ward: Ward) -> Iterator[Ward]:
    """Slurm with either way to know which processes are a job's."""
    with tracking(whole_ward, request.param) as place:
        yield place


@contextmanager
def tracking(ward: Ward, tracking: ProcessTracking) -> Iterator[Ward]:
    """A ward whose Slurm tracks processes like that: this one, or a second Slurm cluster on its nodes for as long."""
    lab, scene = ward.lab, ward.scene
    spec = lab.get("slurmcluster", stage.CLUSTER, "-n", stage.NAMESPACE)["spec"]
    if spec["config"]["processTracking"] == tracking:
        yield ward
        return
    namespace = f"{stage.NAMESPACE}-{tracking.lower()}"
    spec["config"]["processTracking"] = tracking
    for pool in spec["nodePools"]:
        pool.pop("gpus", None)  # they are the first cluster's
    metadata = {"name": stage.CLUSTER, "namespace": namespace}
    cluster = {"apiVersion": API_VERSION, "kind": "SlurmCluster", "metadata": metadata, "spec": spec}
    lab.kubectl("create", "namespace", namespace)
    try:
        lab.kubectl("apply", "-f", "-", text=json.dumps(cluster))
        for part in ("LoginReady", "NodesReady"):
            wait = ("wait", f"slurmcluster/{stage.CLUSTER}", "-n", namespace, f"--for=condition={part}")
            lab.kubectl(*wait, "--timeout=90s", seconds=100)
        login = Login(stage.USER, *scene.view.login_endpoint(namespace, stage.CLUSTER), scene.login.key)
        login.wait(60)
        try:
            stage.bring_examples(login)
            yield Ward(stage.Scene(lab, login, scene.view, namespace), ward.reference)
        finally:
            login.close()
    finally:
        lab.kubectl("delete", "namespace", namespace, "--wait", seconds=120)


@pytest.fixture
def ward(whole_ward: Ward) -> Iterator[Ward]:
    """Two nodes in service and one spare; no job is left afterwards."""
    whole_ward.until_whole()
    yield whole_ward
    whole_ward.scene.login.run("scancel", "--user", stage.USER)
