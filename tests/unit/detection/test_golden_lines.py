"""Lines from the field and from a peer's tests, each with what it must be read as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.faults import classify
from everstep.core.health import Evidence
from everstep.core.kernel_lines.folding import NOTHING, follow
from everstep.core.kernel_lines.parser import parse_line

DATA = Path(__file__).parent.parent / "data"
CATALOG = shipped_catalog()
# What the peer's action is called here. It has nobody who could restart a job, so "none" stands for that too.
PEER_ACTIONS = {
    "NONE": {"none", "restartJob"},
    "COMPONENT_RESET": {"resetGPU"},
    "RESTART_BM": {"rebootNode"},
    "RESTART_VM": {"rebootNode"},
    "REPLACE_VM": {"replaceNode"},
    "CONTACT_SUPPORT": {"callHuman"},
}


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def title(case: dict[str, Any]) -> str:
    return str(case["line"][:60])


FIELD, PEER = cases("kernel_lines.jsonl"), cases("peer_lines.jsonl")


def test_no_line_was_lost_from_the_fixtures() -> None:
    assert (len(FIELD), len(PEER)) == (213, 49)


@pytest.mark.parametrize("case", FIELD, ids=title)
def test_lines_of_the_field(case: dict[str, Any]) -> None:
    expected = case["expected"]
    for evidence in (
        parse_line(case["line"]),
        parse_line(case["line"].encode()),
        follow(NOTHING, case["line"].encode())[1],
    ):
        if expected["kind"] == "none":
            assert evidence is None
            continue
        assert evidence is not None
        assert (evidence.kind, evidence.pci) == (expected["kind"], expected["pci"])
        assert (evidence.pid, evidence.process) == (expected["pid"], expected["process"])
        assert expected["code"] is None or evidence.code == str(expected["code"])
        assert classify(CATALOG, evidence).reason.count("not in the fault catalogue") == (evidence.code == "999")


@pytest.mark.parametrize("case", PEER, ids=title)
def test_lines_of_a_peer(case: dict[str, Any]) -> None:
    """Where the advice differs from the peer's, the case says why."""
    evidence, ours = parse_line(case["line"]), case["ours"]
    if ours["kind"] == "none":
        assert evidence is None
        assert case["expected_action"] in (None, "NONE")
        return
    assert evidence is not None
    fault = classify(CATALOG, evidence)
    assert {
        "kind": evidence.kind, "code": evidence.code, "pci": evidence.pci,
        "class": fault.fault_class, "severity": fault.severity, "action": fault.action,
    } == ours  # fmt: skip
    if case["expected_action"] is not None:
        assert (fault.action in PEER_ACTIONS[case["expected_action"]]) != bool(case.get("why"))


def test_every_line_of_the_field_in_one_stream() -> None:
    """In one stream lines stand next to each other; what one says must not depend on its neighbours."""
    state = NOTHING
    found: list[Evidence | None] = []
    for case in FIELD:
        state, evidence = follow(state, case["line"].encode())
        found.append(evidence)
    assert found == [parse_line(case["line"]) for case in FIELD]
