"""A scripted API server that answers TokenReviews over HTTP on loopback, and nothing else."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class TokenReviews:
    """Answers by ``users``: token to (user name, audiences). An unknown token is not authenticated.

    Attributes:
        status: the HTTP status of the answers; anything but 201 stands for an API server in trouble.
        asked: how many reviews were asked for so far.
    """

    def __init__(self, users: dict[str, tuple[str, list[str]]]) -> None:
        self.users = dict(users)
        self.status = 201
        self.asked = 0
        reviews = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                reviews.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        asked = json.loads(request.rfile.read(int(request.headers["Content-Length"])))["spec"]
        user, audiences = self.users.get(asked["token"], ("", []))
        common = [audience for audience in asked["audiences"] if audience in audiences]
        status: dict[str, object] = {"authenticated": bool(user and common)}
        if user and common:
            status |= {"user": {"username": user}, "audiences": common}
        body = json.dumps({"kind": "TokenReview", "status": status}).encode()
        request.send_response(self.status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
