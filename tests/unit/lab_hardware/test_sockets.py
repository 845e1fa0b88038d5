from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from everstep.lab.hardware.sockets import listen_tcp, listen_unix, short_name


def deep(root: Path) -> Path:
    folder = root / ("d" * 120) / "lab"
    folder.mkdir(parents=True)
    return folder / "hardware.sock"


def test_a_socket_may_lie_deeper_than_its_name_may_be_long(tmp_path: Path) -> None:
    path = deep(tmp_path)
    assert len(str(path)) > 107
    with listen_unix(path), short_name(path) as name, socket.socket(socket.AF_UNIX) as client:
        client.connect(name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hardware.sock"
    listen_unix(path).close()
    assert path.exists()
    with listen_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_an_address_that_is_taken_is_named() -> None:
    with listen_tcp("127.0.0.1", 0, None) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen_tcp("127.0.0.1", port, None)


def test_entering_a_namespace_leaves_this_thread_where_it_was() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(OSError, match="No such file"):
        listen_tcp("127.0.0.1", 0, "/run/netns/everstep-none-such")
    assert os.readlink("/proc/thread-self/ns/net") == before
