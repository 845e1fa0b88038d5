"""Slurm's hostlist notation: ``gpu-[1-3,07],login`` names gpu-1, gpu-2, gpu-3, gpu-07 and login."""

from __future__ import annotations

import itertools
import re

from everstep.core.errors import InvalidInput

# Slurm itself refuses host ranges above 64 Ki names (MAX_RANGE in src/common/hostlist.c).
MAX_NAMES = 64 * 1024
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(hostlist: str) -> tuple[str, ...]:
    """The names of a hostlist, in its order; empty for an empty list, ``(null)`` and ``None assigned``.

    Raises InvalidInput for unbalanced brackets, a range that runs backwards, or more than 65,536 names.
    """
    text = hostlist.strip()
    if text in {"", "(null)", "None assigned", "N/A"}:
        return ()
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand_one(part, MAX_NAMES - len(names)))
    return tuple(names)


def _split(text: str) -> list[str]:
    """Cuts at commas outside brackets."""
    parts: list[str] = []
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise InvalidInput(f"hostlist {text!r} has unbalanced brackets")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise InvalidInput(f"hostlist {text!r} has unbalanced brackets")
    parts.append(text[start:])
    return [part for part in parts if part]


def _expand_one(part: str, room: int) -> list[str]:
    pieces = _BRACKETS.split(part)  # literal, range, literal, range, ..., literal
    choices = [[piece] if index % 2 == 0 else _numbers(part, piece, room) for index, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > room:
        raise InvalidInput(f"hostlist {part!r} names more than {MAX_NAMES} hosts")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _numbers(part: str, ranges: str, room: int) -> list[str]:
    numbers: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text)
        if match is None:
            raise InvalidInput(f"hostlist {part!r} has a range that is not a number: {text!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise InvalidInput(f"hostlist {part!r} has a range that runs backwards: {text!r}")
        if int(last) - int(first) >= room - len(numbers):
            raise InvalidInput(f"hostlist {part!r} names more than {MAX_NAMES} hosts")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers
