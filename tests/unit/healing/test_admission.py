"""The fleet-wide budget and breaker, and two controllers that admit at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from everstep.core.admission import admit, holds_budget
from everstep.core.policy import Policy
from everstep.core.remediation_status import Outcome, Remediation, Replacement, Spec, Stage, Status

NOW = 10_000.0


def incident(name: str, created: float = 0.0, node: str = "", **status: object) -> Remediation:
    spec = Spec(node or f"node-{name}", "uid", "boot", "pool", name, 1, ())
    return Remediation(name, f"uid-{name}", "1", created, spec, Status(**status))  # type: ignore[arg-type]


def test_the_budget_is_used_until_a_replacement_is_in_service() -> None:
    active = incident("a", stage=Stage.REPLACING, admitted_at=NOW - 5)
    waiting = incident("b", created=1.0)
    refused = admit(NOW, waiting, [active, waiting], Policy(), ())
    assert not refused.granted
    assert refused.reason == "the budget of 1 is used by a"
    replaced = replace(active, status=replace(active.status, replacement=Replacement("s", 1.0, 2.0, 3.0)))
    assert admit(NOW, waiting, [replaced, waiting], Policy(), ()).granted


def test_the_oldest_goes_first() -> None:
    older, newer = incident("z", created=1.0), incident("a", created=2.0)
    assert admit(NOW, older, [older, newer], Policy(), ()).granted
    assert not admit(NOW, newer, [older, newer], Policy(), ()).granted


def test_the_breaker_opens_after_many_starts_and_after_a_few_escalations() -> None:
    policy = Policy(breaker_starts=3, breaker_escalations=2)
    done = [incident(str(i), stage=Stage.RESOLVED, outcome=Outcome.SUCCEEDED, admitted_at=NOW - 9) for i in range(3)]
    bad = [incident(str(i), stage=Stage.RESOLVED, outcome=Outcome.ESCALATED, admitted_at=NOW - 9) for i in range(2)]
    for recent in (done, bad):
        refused = admit(NOW, incident("x"), recent, policy, ())
        assert not refused.granted
        assert "breaker open" in refused.reason
        assert admit(NOW + policy.breaker_window, incident("x"), recent, policy, ()).granted


def test_nodes_that_fall_silent_together_are_a_network_and_no_reason_to_heal() -> None:
    refused = admit(NOW, incident("x"), [], Policy(), ("n1", "n2", "n3"))
    assert not refused.granted
    assert "network" in refused.reason


def test_a_second_incident_on_one_node_is_part_of_the_first() -> None:
    first, second = incident("a", created=1.0, node="n"), incident("b", created=2.0, node="n")
    assert admit(NOW, second, [first, second], Policy(), ()).duplicate_of == "a"
    assert not admit(NOW, first, [first, second], Policy(), ()).duplicate_of


def test_the_one_admitted_first_waits_for_the_other_to_give_way() -> None:
    """Both sides of the race: the later one gives way, and the earlier one does not run ahead of a late write."""
    first = incident("a", stage=Stage.ADMITTED, admitted_at=NOW)
    second = incident("b", stage=Stage.ADMITTED, admitted_at=NOW + 1)
    assert admit(NOW, second, [first, second], Policy(), ()).give_way
    waits = admit(NOW, first, [first, second], Policy(), ())
    assert not waits.granted
    assert not waits.give_way


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["admit", "confirm"])), max_size=40), st.integers(1, 2))
def test_no_interleaving_of_controllers_breaks_the_budget(turns: list[tuple[int, str]], budget: int) -> None:
    """Each turn reads the fleet, decides and writes one incident; writes of one incident are compare-and-swap."""
    policy = Policy(budget=budget)
    fleet = {str(i): incident(str(i), created=float(i)) for i in range(4)}
    held: dict[str, tuple[Remediation, bool, bool]] = {}
    for clock, (number, what) in enumerate(turns):
        name = str(number)
        if what == "admit":  # the decision is made now, on what is seen now ...
            seen = admit(NOW + clock, fleet[name], fleet.values(), policy, ())
            held[name] = (fleet[name], seen.granted, seen.give_way)
            continue
        if name not in held:
            continue
        before, granted, give_way = held.pop(name)  # ... and written later
        if fleet[name] is not before:
            continue
        status = before.status
        if status.stage is Stage.PENDING and granted:
            status = replace(status, stage=Stage.ADMITTED, admitted_at=NOW + clock)
        elif status.stage is Stage.ADMITTED and give_way:
            status = replace(status, stage=Stage.PENDING, admitted_at=None)
        elif status.stage is Stage.ADMITTED and granted:
            status = replace(status, stage=Stage.ISOLATING)
        fleet[name] = replace(before, status=status)
    begun = [r for r in fleet.values() if holds_budget(r) and r.status.stage is Stage.ISOLATING]
    assert len(begun) <= budget
