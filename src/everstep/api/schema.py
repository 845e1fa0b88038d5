"""Structural schemas for CustomResourceDefinitions, from msgspec structs.

A structural schema may hold no ``$ref``, so nested structs are written out where they are used. Descriptions come from
:func:`doc` and, for structs, from the docstring; defaults come from the fields and are written for ``spec`` only,
because what a controller has not said yet must not read as if it had.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

Schema = dict[str, Any]

_EMPTY: tuple[object, ...] = (None, "", 0, False)
_LIMITS = {
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
_SCALARS: dict[type[inspect.Type], Schema] = {
    inspect.DateTimeType: {"type": "string", "format": "date-time"},
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer", "format": "int64"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
    inspect.AnyType: {"x-kubernetes-preserve-unknown-fields": True},
}


def doc(description: str, **schema: object) -> msgspec.Meta:
    """Annotation of a field: what it means, with its unit; keywords are further schema keys (``maximum=600``)."""
    return msgspec.Meta(description=description, extra_json_schema=dict(schema) or None)


def map_of(description: str, *keys: str, **schema: object) -> msgspec.Meta:
    """Like :func:`doc`, for a list whose items are told apart by ``keys``, so that appliers can own single items."""
    extra = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys), **schema}
    return msgspec.Meta(description=description, extra_json_schema=extra)


def structural(struct: type[msgspec.Struct], defaults: bool) -> Schema:
    """The schema of one struct, nested ones included."""
    return _schema(inspect.type_info(struct), defaults)


def _schema(kind: inspect.Type, defaults: bool) -> Schema:
    match kind:
        case inspect.Metadata():
            return {**_schema(kind.type, defaults), **(kind.extra_json_schema or {})}
        case inspect.UnionType():
            return _schema(_present(kind), defaults)
        case inspect.StructType():
            return _object(kind, defaults)
        case inspect.ListType(item_type=item):
            return {"type": "array", "items": _schema(item, defaults)}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value, defaults)}
        case _:
            return _scalar(kind)


def _scalar(kind: inspect.Type) -> Schema:
    if isinstance(kind, inspect.EnumType):
        return {"type": "string", "enum": [member.value for member in kind.cls]}
    for known, schema in _SCALARS.items():
        if isinstance(kind, known):
            limits = {name: getattr(kind, own, None) for own, name in _LIMITS.items()}
            return {**schema, **{name: value for name, value in limits.items() if value is not None}}
    raise TypeError(f"no structural schema is known for {kind!r}")


def _present(union: inspect.UnionType) -> inspect.Type:
    given = [t for t in union.types if not isinstance(t, inspect.NoneType)]
    if len(given) != 1:
        raise TypeError("a structural schema has no unions; only `X | None`, for a field that may be absent")
    return given[0]


def _object(kind: inspect.StructType, defaults: bool) -> Schema:
    properties: dict[str, Schema] = {}
    for field in kind.fields:
        schema = _schema(field.type, defaults)
        if not schema.get("description"):
            raise TypeError(f"{kind.cls.__name__}.{field.name} has no description")
        if defaults and (default := _default(field)) is not None:
            schema["default"] = default
        properties[field.encode_name] = schema
    required = [field.encode_name for field in kind.fields if field.required]
    schema = {"type": "object", "description": _docstring(kind.cls), "properties": properties}
    return {**schema, "required": required} if required else schema


def _default(field: inspect.Field) -> Any:
    """None where the default says no more than absence does."""
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
        if isinstance(value, msgspec.Struct):  # its own fields carry their defaults
            return {}
    if value is msgspec.NODEFAULT or value in _EMPTY or value in ([], {}):
        return None
    return msgspec.to_builtins(value)


def _docstring(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split())
