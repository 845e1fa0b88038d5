"""Reads the loss files that examples/train.py writes: one JSON object a step, with its attempt."""

from __future__ import annotations

import msgspec

from everstep.lab.errors import LabError


class LossLine(msgspec.Struct):
    """``loss`` is the hexadecimal form of the float."""

    attempt: int
    step: int
    loss: str


def read_losses(text: str) -> dict[int, dict[int, str]]:
    """Loss by attempt and step. A line that was cut by a kill counts as not written, if it is the last of its file.

    Raises LabError for any other line that does not parse.
    """
    losses: dict[int, dict[int, str]] = {}
    for line in text.splitlines():
        try:
            found = msgspec.json.decode(line, type=LossLine)
        except msgspec.DecodeError as error:
            raise LabError(f"the loss file holds a line that is none: {line[:80]!r} ({error})") from error
        losses.setdefault(found.attempt, {})[found.step] = found.loss
    return losses
