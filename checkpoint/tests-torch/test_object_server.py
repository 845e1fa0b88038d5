"""What tests/test_store.py promises, on an object server: s3fs speaks HTTP with moto's server on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import s3fs
from checkpoint_ranks import until

# The same tests, with this module's `url` and `shared_url`.
from test_store import (  # noqa: F401
    opened,
    plain_process,
    save,
    test_a_damaged_one_is_never_resumed,
    test_a_shard_is_checked_again_where_it_is_loaded,
    test_an_older_attempt_publishes_nothing_any_more_and_nothing_is_overwritten,
    test_kills_never_cost_a_published_checkpoint,
    test_stopped_and_resumed_is_the_same_run,
)

from everstep_checkpoint.errors import GivenUpError
from everstep_checkpoint.snapshot import HostMemory

_PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


@contextmanager
def object_server(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server on a free port of loopback, ready for requests, that this process and its children use for s3://."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        # The port is bound when it is named.
        until(lambda: _PORT.search(log.read_text()) or process.poll() is not None, "the server names its port")
        port = _PORT.search(log.read_text())
        assert port is not None, f"the server has ended: {log.read_text()}"
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port[1]}")
            patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("AWS_CONFIG_FILE", os.devnull)
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
            patch.setenv("AWS_MAX_ATTEMPTS", "1")
            patch.setenv("no_proxy", "127.0.0.1")
            s3fs.S3FileSystem.clear_instance_cache()
            yield process
    finally:
        process.kill()
        process.wait()
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with object_server(tmp_path_factory.mktemp("server") / "log"):
        yield


@pytest.fixture
def url(server: None, tmp_path: Path) -> str:
    return f"s3://everstep/{tmp_path.name}/run"


@pytest.fixture
def shared_url(url: str) -> str:
    return url


def test_a_shard_of_several_parts_is_whole_or_not_there(tmp_path: Path, url: str) -> None:
    vault, state = opened(tmp_path, url), {"w": np.random.default_rng(1).random(15_000_000)}
    snapshot = HostMemory().take(state)
    assert snapshot.bytes > 2 * vault._remote._fs.default_block_size, "more than one part"
    looks = iter([False] * 12)
    with pytest.raises(GivenUpError):
        vault.write_rank(10, 0, snapshot, lambda: next(looks, True))
    vault.discard(10)
    assert vault._remote.names(vault._root) == []
    written = vault.write_rank(20, 0, snapshot, lambda: False)
    found = vault.publish(20, {0: written["manifest"]}, {})
    restored, _ = opened(tmp_path, url, "b").read_rank(vault.verified(found.path.name), 0)
    assert np.array_equal(restored["w"], state["w"])


def test_a_server_that_is_gone_is_not_an_empty_one(tmp_path: Path) -> None:
    with object_server(tmp_path / "log") as process:
        vault = opened(tmp_path / "own", "s3://everstep/gone")
        save(vault, 10)
        assert vault.newest_valid() is not None
        process.kill()
        process.wait()
        with pytest.raises(OSError, match="connect"):
            vault.published()
        vault.discard(10)  # says so, and leaves it
