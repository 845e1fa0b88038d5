"""The reference page of the custom resources, generated from the same structs as the CRDs.

``python -m everstep.api.reference > docs/reference/resources.md``; a test compares the page with the structs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from everstep.api.crds import KINDS, Kind, definition
from everstep.api.meta import GROUP, VERSION

Schema = dict[str, Any]


def render() -> str:
    """The whole page, Markdown."""
    lines = [
        "# Custom resources",
        "",
        f"API group `{GROUP}`, version `{VERSION}`. Generated; `kubectl explain` says the same.",
    ]
    for kind in KINDS:
        lines += ["", *_kind(kind)]
    return "\n".join(lines) + "\n"


def _kind(kind: Kind) -> Iterator[str]:
    crd = definition(kind)["spec"]
    names, schema = crd["names"], crd["versions"][0]["schema"]["openAPIV3Schema"]
    short = ", ".join(f"`{name}`" for name in names.get("shortNames", []))
    yield f"## {names['kind']}"
    yield ""
    yield f"`kubectl get {names['plural']}`; {crd['scope'].lower()}-scoped" + (
        f"; short name {short}." if short else "."
    )
    yield ""
    yield schema.get("description", "")
    for part in ("spec", "status"):
        found = schema["properties"].get(part)
        if found and found.get("properties"):
            yield ""
            yield f"### {names['kind']}.{part}"
            yield ""
            yield "| field | type | default | meaning |"
            yield "|---|---|---|---|"
            yield from _rows(found, "")


def _rows(schema: Schema, prefix: str) -> Iterator[str]:
    required = set(schema.get("required", []))
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        default = json.dumps(field["default"]) if "default" in field else ("*required*" if name in required else "")
        yield f"| `{path}` | {_type(field)} | {_cell(default)} | {_cell(field.get('description', ''))} |"
        inner = field.get("items", field)
        if inner.get("properties"):
            yield from _rows(inner, f"{path}[]." if "items" in field else f"{path}.")


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{value}`" for value in field["enum"])
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return "map"
    return str(field.get("format") or field.get("type", "any"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
