"""One real API server for the tests of this folder, with Everstep's CRDs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.lab.binaries import binaries_dir, built

from .api_server import ApiServer

CRDS = Path(__file__).parents[3] / "charts" / "everstep" / "crds"


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    binaries = binaries_dir()
    assert built(binaries), "Kubernetes is not built yet; run `make test`, or `everstep lab setup`"
    server = ApiServer(binaries, tmp_path_factory.mktemp("api-server"))
    try:
        server.start()
        server.kubectl("apply", "-f", str(CRDS))
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        server.kubectl("create", "namespace", "everstep-node-lease")
        server.kubectl("create", "namespace", "everstep-system")
        server.kubectl("create", "serviceaccount", "default", "--namespace=everstep-system")
        yield server
    finally:
        server.stop()
