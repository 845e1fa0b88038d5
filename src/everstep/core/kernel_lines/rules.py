"""A family of lines as a table: each rule is the code, a word that must occur, and the pattern of the message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.health import Evidence, Part


@dataclass(frozen=True, slots=True)
class Rule:
    """One code of a family.

    Attributes:
        word: bytes that every such line holds; looking for them first costs a tenth of the pattern's match.
        pattern: matched where the message begins. Named groups, all optional: ``pci``, ``pid``, ``process``,
            ``subject``, their second places ``pci2`` and ``subject2`` in another alternative, and ``nothing``, which
            when it took part makes the line no evidence (a count of zero).
    """

    code: str
    word: bytes
    pattern: re.Pattern[bytes]
    part: Part = Part.WHOLE


def rule(code: str, word: bytes, pattern: bytes, part: Part = Part.WHOLE) -> Rule:
    """A rule from the text of its pattern."""
    return Rule(code, word, re.compile(pattern), part)


def first_match(kind: str, rules: Sequence[Rule], line: bytes, start: int) -> Evidence | None:
    """What the first rule that fits says of the message at ``start``; None when none fits."""
    for item in rules:
        if item.word in line and (match := item.pattern.match(line, start)):
            groups = match.groupdict()
            if groups.get("nothing") is not None:
                return None
            return Evidence(
                kind=kind,
                code=item.code,
                pci=_text(groups.get("pci") or groups.get("pci2")),
                pid=int(groups["pid"]) if groups.get("pid") else None,
                process=_text(groups.get("process")),
                subject=_text(groups.get("subject") or groups.get("subject2")),
                part=item.part,
            )
    return None


def _text(group: bytes | None) -> str | None:
    return group.decode("utf-8", "replace") if group else None
