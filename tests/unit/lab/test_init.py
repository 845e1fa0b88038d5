"""The first process of a node, as far as it can be tried without namespaces."""

from __future__ import annotations

import os
import socket
import threading
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from everstep.lab import init


def test_a_file_answers_once_it_is_there(tmp_path: Path) -> None:
    assert not init.answers(str(tmp_path / "gate"))
    (tmp_path / "gate").touch()
    assert init.answers(str(tmp_path / "gate"))


def test_an_address_answers_once_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        assert init.answers(f"{host}:{port}")
    assert not init.answers(f"{host}:{port}")


class _Runtime(grpc.GenericRpcHandler):
    """Stands in for containerd: answers Version, or says that it is not there yet."""

    def __init__(self) -> None:
        self.ready = False

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if call.method != "/runtime.v1.RuntimeService/Version":
            return None

        def version(_: bytes, context: grpc.ServicerContext) -> bytes:
            if not self.ready:
                context.abort(grpc.StatusCode.UNAVAILABLE, "server is not initialized yet")
            return b"\x0a\x050.1.0"

        return grpc.unary_unary_rpc_method_handler(version)


def test_a_runtime_that_listens_but_does_not_serve_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    assert not init.answers(f"cri:{path}")
    runtime = _Runtime()
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(runtime,))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        assert not init.answers(f"cri:{path}")
        runtime.ready = True
        assert init.answers(f"cri:{path}")
    finally:
        server.stop(None)


def test_something_that_is_no_runtime_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def hang_up() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert not init.answers(f"cri:{path}")
        thread.join()


def test_a_dead_daemon_is_told_from_an_orphan(capfd: pytest.CaptureFixture[str]) -> None:
    daemon, orphan = os.fork(), -1
    if daemon == 0:
        os._exit(3)
    orphan = os.fork()
    if orphan == 0:
        os._exit(0)
    os.waitid(os.P_PID, daemon, os.WEXITED | os.WNOWAIT)
    os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    known = {"name": "kubelet"}
    assert init.reap({daemon: known}) == [known]
    assert '"daemon": "kubelet"' in capfd.readouterr().out
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan, os.WNOHANG)  # was collected too


def test_a_program_that_does_not_exist_is_reported_like_one_that_died(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon = {"name": "kubelet", "argv": ["/nonexistent/kubelet"], "log": str(tmp_path / "log"), "after": []}
    assert init.start(daemon, {"PATH": "/bin"}) is None
    assert '"event": "exited"' in capfd.readouterr().out
    assert "cannot start /nonexistent/kubelet" in (tmp_path / "log").read_text()
