"""The Slurm gateway's HTTP interface, version 1, shared by its server and its client. Every body is JSON.

| request | body | answer |
|---|---|---|
| ``GET /v1/snapshot`` | | :class:`~everstep.core.scheduler_state.SchedulerSnapshot` |
| ``GET /v1/jobs/{id}/progress?user=U`` | | :class:`~everstep.core.scheduler_state.JobProgress` |
| ``POST /v1/nodes/{name}/drain``, ``/down`` | :class:`Reason` | 204 |
| ``POST /v1/nodes/{name}/resume`` | :class:`ReasonPrefix` | 204 |
| ``DELETE /v1/nodes/{name}`` | | 204 |
| ``POST /v1/jobs/{id}/requeue``, ``/hold``, ``/release``, ``/clear-stale`` | :class:`Guard` | 204 |
| ``POST /v1/jobs/{id}/tell`` | :class:`Message` | 204 |
| ``GET /healthz`` | | 200, without authentication |

Any other answer carries a :class:`Failure`. Who calls is told by a bearer token of Kubernetes for :data:`AUDIENCE`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from everstep.core.errors import (
    Conflict,
    EverstepError,
    InvalidInput,
    NotFound,
    Refused,
    RetryLater,
    Unreachable,
)

PORT = 6840
AUDIENCE = "slurm-gateway.everstep.io"
# A reason has 256 characters and a message 512, each up to 4 bytes and escaped.
MAX_BODY = 16 * 1024


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``reason`` is one line of up to 256 characters."""

    reason: str


class ReasonPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node is resumed only while its reason starts with ``reason_prefix``."""

    reason_prefix: str


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The restart count that the caller decided on; the job is left alone when it has another."""

    restarts: int


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of up to 512 characters for the job's standard error."""

    message: str


class Kind(StrEnum):
    """What a caller can do about a failure."""

    TRANSIENT = "transient"  # could not ask, or safe to repeat
    CONFLICT = "conflict"  # look again first
    NOT_FOUND = "not_found"  # Slurm says that it does not know the node or job
    REFUSED = "refused"  # denied; will be denied again
    INVALID = "invalid"  # malformed


class Problem(msgspec.Struct, frozen=True):
    kind: Kind
    message: str


class Failure(msgspec.Struct, frozen=True):
    error: Problem


_STATUS = {Kind.TRANSIENT: 503, Kind.CONFLICT: 409, Kind.NOT_FOUND: 404, Kind.REFUSED: 403, Kind.INVALID: 400}
_ERRORS: dict[Kind, type[EverstepError]] = {
    Kind.TRANSIENT: Unreachable,
    Kind.CONFLICT: Conflict,
    Kind.NOT_FOUND: NotFound,
    Kind.REFUSED: Refused,
    Kind.INVALID: InvalidInput,
}


def failure_of(error: EverstepError) -> tuple[int, Failure]:
    """The HTTP status and body for an error; whatever is not one of the four definite kinds is transient."""
    definite = ((Conflict, Kind.CONFLICT), (NotFound, Kind.NOT_FOUND), (Refused, Kind.REFUSED))
    kind = next((kind for cls, kind in definite if isinstance(error, cls)), None)
    if kind is None:
        kind = Kind.INVALID if isinstance(error, InvalidInput) else Kind.TRANSIENT
    return _STATUS[kind], Failure(Problem(kind, str(error)))


def error_of(status: int, body: bytes) -> EverstepError:
    """The error that an answer stands for.

    An answer that the gateway did not write (a proxy's 404, a page of HTML) is Unreachable: nobody has said anything
    about Slurm.
    """
    try:
        problem = msgspec.json.decode(body, type=Failure).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Unreachable(f"the Slurm gateway's answer cannot be understood (HTTP {status})")
    if status != _STATUS[problem.kind] and status != 401:
        return RetryLater(f"HTTP {status} with a problem of kind {problem.kind}: {problem.message}")
    return _ERRORS[problem.kind](problem.message)
