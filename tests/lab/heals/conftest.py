"""One Slurm cluster for all heals of a test run, in the run's lab, put right again after each heal."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.lab.cluster import Lab
from everstep.lab.demo import stage
from everstep.lab.demo.cluster_view import ClusterView
from everstep.lab.demo.login import make_key
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


@pytest.fixture
def ward(whole_ward: Ward) -> Iterator[Ward]:
    """Two nodes in service and one spare; no job is left afterwards."""
    whole_ward.until_whole()
    yield whole_ward
    whole_ward.scene.login.run("scancel", "--user", stage.USER)
