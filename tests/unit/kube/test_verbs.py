"""Every refusal of the API server becomes the right branch of the error tree; secrets stay out of the texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from everstep.adapters.kube.verbs import AlreadyExists, Verbs
from everstep.core import errors


def call(handler: Callable[[httpx2.Request], httpx2.Response]) -> bytes:
    async def go() -> bytes:
        async with httpx2.AsyncClient(base_url="http://api", transport=httpx2.MockTransport(handler)) as http:
            return await Verbs(http).send("POST", "/api/v1/things", {"a": 1})

    return asyncio.run(go())


def status(code: int, reason: str = "", message: str = "no") -> httpx2.Response:
    return httpx2.Response(code, json={"kind": "Status", "code": code, "reason": reason, "message": message})


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (status(400), errors.InvalidInput),
        (status(401), errors.Refused),
        (status(403), errors.Refused),
        (status(404, "NotFound"), errors.NotFound),
        (status(409, "Conflict"), errors.Conflict),
        (status(409, "AlreadyExists"), AlreadyExists),
        (status(422), errors.InvalidInput),
        (status(429), errors.RetryLater),
        (httpx2.Response(429, text="Too many requests"), errors.RetryLater),
        (status(500), errors.Unreachable),
        (httpx2.Response(502, text="<html>"), errors.Unreachable),
        (status(418), errors.Unreachable),
    ],
)
def test_refusals(reply: httpx2.Response, kind: type[errors.EverstepError]) -> None:
    with pytest.raises(kind) as caught:
        call(lambda request: reply)
    assert type(caught.value) is kind
    assert f"POST /api/v1/things was answered {reply.status_code}" in str(caught.value)


def test_no_answer_is_unreachable() -> None:
    def cut(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("connection reset")

    with pytest.raises(errors.Unreachable, match="did not answer POST /api/v1/things"):
        call(cut)


def test_success_returns_the_body() -> None:
    assert call(lambda request: httpx2.Response(201, content=request.content)) == b'{"a":1}'
