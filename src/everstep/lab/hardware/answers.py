"""JSON answers of the hardware's two HTTP interfaces."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from everstep.core.errors import Conflict, EverstepError, InvalidInput, NotFound, Refused

MEDIA_TYPE = "application/json"
CODES: tuple[tuple[type[EverstepError], int, str], ...] = (
    (Conflict, 409, "conflict"),
    (InvalidInput, 400, "invalid"),
    (NotFound, 404, "notFound"),
    (Refused, 403, "refused"),
)


def answer(status: int, content: Any) -> Response:
    """``content`` is anything that msgspec can encode."""
    return Response(msgspec.json.encode(content), status, media_type=MEDIA_TYPE)


def problem(status: int, code: str, error: str) -> Response:
    """An error: a word for programs and a sentence for people."""
    return answer(status, {"code": code, "error": error})


def problem_of(error: EverstepError) -> Response:
    """The answer to an error that was raised on purpose; 500 for those that are no fault of the caller's."""
    for kind, status, code in CODES:
        if isinstance(error, kind):
            return problem(status, code, str(error))
    return problem(500, "internal", str(error))
