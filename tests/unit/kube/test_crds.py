"""The CRDs that the chart carries are the ones that the types say, and they read well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml

from everstep.api.crds import KINDS, Kind, definition, render
from everstep.api.schema import doc, structural

CHART = Path(__file__).parents[3] / "charts" / "everstep" / "crds"
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


@by_kind
def test_chart_carries_what_the_types_say(kind: Kind) -> None:
    carried = (CHART / f"{kind.plural}.yaml").read_text()
    assert carried == render(kind), "run: python -m everstep.api.crds charts/everstep/crds"


def nested(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nested(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nested(schema[key], f"{path}[]")


def schema_of(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


@by_kind
def test_every_field_is_described_by_a_sentence(kind: Kind) -> None:
    for path, schema in nested(schema_of(kind), kind.kind):
        if (path.endswith("[]") and schema["type"] != "object") or path.endswith(".metadata"):
            continue
        assert schema.get("description", "").endswith("."), f"{path} is not described"


@by_kind
def test_durations_and_times_carry_their_unit(kind: Kind) -> None:
    for path, schema in nested(schema_of(kind), kind.kind):
        if schema.get("type") in ("number", "integer") and path.lower().endswith("seconds"):
            assert "econds" in schema["description"], f"{path} does not say its unit"


@by_kind
def test_map_lists_have_required_scalar_keys(kind: Kind) -> None:
    for path, schema in nested(schema_of(kind), kind.kind):
        for key in schema.get("x-kubernetes-list-map-keys", []):
            assert key in schema["items"]["required"], f"{path}: {key} must be required"
            assert schema["items"]["properties"][key]["type"] in ("string", "integer")


@by_kind
def test_columns_point_at_fields_that_exist(kind: Kind) -> None:
    known = {path.removeprefix(kind.kind) for path, _ in nested(schema_of(kind), kind.kind)}
    for column in kind.columns:
        field, _, _ = column.path.partition("[")  # what follows picks from a list
        assert field in known or field == ".metadata.creationTimestamp", column


def test_defaults_of_the_policy_are_in_its_schema() -> None:
    spec = schema_of(next(kind for kind in KINDS if kind.kind == "RemediationPolicy"))["properties"]["spec"]
    properties = spec["properties"]
    assert properties["mode"]["default"] == "DryRun"
    assert properties["graceSeconds"]["default"] == properties["graceSeconds"]["minimum"] == 120
    assert properties["budget"] == {**properties["budget"], "default": {}}
    assert properties["budget"]["properties"]["maxConcurrent"]["default"] == 1


def test_status_has_no_defaults() -> None:
    status = schema_of(next(kind for kind in KINDS if kind.kind == "Remediation"))["properties"]["status"]
    assert "default" not in yaml.safe_dump(status)


def test_field_without_a_description_is_refused() -> None:
    class Bare(msgspec.Struct):
        """Something."""

        size: int

    with pytest.raises(TypeError, match=r"Bare\.size has no description"):
        structural(Bare, defaults=True)


def test_union_is_refused() -> None:
    class Either(msgspec.Struct):
        """Something."""

        size: Annotated[int | str, doc("Size.")]

    with pytest.raises(TypeError, match="no unions"):
        structural(Either, defaults=True)
