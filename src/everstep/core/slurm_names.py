"""What may be passed on to Slurm's command line: names, ids and one line of text, nothing that could mean more."""

from __future__ import annotations

import re

from everstep.core.errors import InvalidInput

# Slurm would expand brackets and commas, and "ALL" means every node: one call touches one node.
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_JOB = re.compile(r"[1-9][0-9]{0,9}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
MAX_REASON = 256
MAX_MESSAGE = 512


def node_name(text: str) -> str:
    """One node's name; raises InvalidInput."""
    if not _NODE.fullmatch(text) or text.upper() == "ALL":
        raise InvalidInput(f"{text[:80]!r} is not the name of one node")
    return text


def job_id(text: str) -> str:
    """A job's number; raises InvalidInput."""
    if not _JOB.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is not a job id")
    return text


def user_name(text: str) -> str:
    """A login name, or a number when Slurm could not name the user; raises InvalidInput."""
    if not _USER.fullmatch(text) or ".." in text:
        raise InvalidInput(f"{text[:80]!r} is not a user name")
    return text


def one_line(text: str, what: str, limit: int) -> str:
    """Text of 1 to ``limit`` characters without control characters; raises InvalidInput."""
    if not 0 < len(text) <= limit:
        raise InvalidInput(f"the {what} must have 1 to {limit} characters, not {len(text)}")
    if not text.isprintable() or text != text.strip():
        raise InvalidInput(f"the {what} must be one line of printable characters")
    return text
