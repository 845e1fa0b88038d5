"""Values between the core's dataclasses and the API's structs, which have the same field names.

Three things differ: the core counts time in Unix seconds (0.0 = never) where the API writes RFC 3339, the core has
tuples where JSON has lists, and either side may have fields that the other does not know.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
D = TypeVar("D")


def moment(seconds: float) -> datetime:
    """Unix seconds as UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC)


def to_api(thing: object, struct: type[S], **extra: Any) -> S:
    """A struct with the dataclass's values; ``extra`` fills fields that the core does not know."""
    hints = _hints(struct)
    values = {
        field.name: _outward(getattr(thing, field.name), hints[field.name])
        for field in fields(thing)  # type: ignore[arg-type]  # a dataclass, by contract
        if field.name in hints
    }
    return struct(**values, **extra)


def to_core(struct: msgspec.Struct, cls: type[D], **extra: Any) -> D:
    """A dataclass with the struct's values; ``extra`` fills fields that the API does not have."""
    known: Any = cls  # a class is hashable, which the type checker does not know of an unbound type variable
    values = {
        name: _inward(getattr(struct, name), hint)
        for name, hint in _hints(known).items()
        if name in struct.__struct_fields__
    }
    return cls(**values, **extra)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _outward(value: Any, hint: Any) -> Any:
    kind = _bare(hint)
    if isinstance(value, float) and kind is datetime:
        return moment(value) if value or hint is datetime else None
    if isinstance(value, tuple) and get_origin(kind) is list:
        (item,) = get_args(kind)
        return [_outward(each, item) for each in value]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(value, tuple):
            return kind(*value)
        if is_dataclass(value):
            return to_api(value, kind)
    return value


def _inward(value: Any, hint: Any) -> Any:
    kind = _bare(hint)
    if isinstance(value, datetime):
        return value.timestamp()
    if value is None and kind is float and hint is float:
        return 0.0
    if isinstance(value, list):
        item = get_args(kind)[0]
        return tuple(_inward(each, item) for each in value)
    if isinstance(value, msgspec.Struct):
        return to_core(value, kind) if isinstance(kind, type) and is_dataclass(kind) else msgspec.structs.astuple(value)
    return value


def _bare(hint: Any) -> Any:
    """``X`` of ``X | None``."""
    if get_origin(hint) in (Union, types.UnionType):
        given = [arg for arg in get_args(hint) if arg is not types.NoneType]
        return given[0] if len(given) == 1 else hint
    return hint
