"""The parts of Kubernetes' own wire format that every kind shares, as lean msgspec views."""

from __future__ import annotations

from datetime import datetime

import msgspec


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Metadata of any object; only what the platform reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(name="continue", default="")


class Listing(msgspec.Struct, frozen=True):
    """One page of a list; its items are decoded one by one, so that one malformed item spoils nothing else."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] = []


class AnyObject(msgspec.Struct, frozen=True):
    """Any object at all, for its name and version when the rest cannot be read."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


class WatchLine(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class StatusCause(msgspec.Struct, frozen=True):
    """One reason of several; ``field`` is the path in the object that it is about."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    retry_after_seconds: int = 0
    causes: list[StatusCause] = []


class ApiStatus(msgspec.Struct, frozen=True):
    """``v1.Status``: what the API server says when it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = msgspec.field(default_factory=StatusDetails)
