"""What Slurm's command line prints, parsed into typed values; the same text forms hold from 22.05 to 26.05.

Job fields are read with ``squeue -O``, never from ``scontrol show job -o``: since 26.05 the latter holds the user's own
command line, spaces and equals signs included. A job's name may hold any character too, so every field ends in a
separator that carries a random word of the caller's choice, which nobody can write into a name beforehand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from everstep.core.errors import (
    Conflict,
    EverstepError,
    InvalidInput,
    NotFound,
    Refused,
    RetryLater,
    Unreachable,
)
from everstep.core.hostlists import expand
from everstep.core.scheduler_state import WAITING_JOB_STATES, SlurmJob, SlurmNode

_JOB_FIELDS = (
    "JobID",
    "JobArrayID",
    "UserName",
    "State",
    "RestartCnt",
    "NodeList",
    "NumNodes",
    "Requeue",
    "BatchFlag",
    "PriorityLong",
    "EligibleTime",
    "StartTime",
    "EndTime",
    "SubmitTime",
    "NumTasks",
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "Reason",
    "Name",
)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as squeue shows it.

    Attributes:
        target: how scontrol and scancel name exactly this job: ``17_3`` for an array element (a bare ``17`` would hit
            the whole array), the leader's id for a component of a heterogeneous job (others are refused).
        eligible_at: Unix seconds before which Slurm does not start it; None when unset or held without one.
        submitted_at: Unix seconds; Slurm sets it anew when a requeue completes.
    """

    job: SlurmJob
    target: str
    priority: int
    eligible_at: float | None
    submitted_at: float | None

    def waits_for_begin_time(self, now: float) -> bool:
        """By the time when Slurm says one: the reason is refreshed only at its next scheduling pass."""
        return self.job.reason == "BeginTime" if self.eligible_at is None else self.eligible_at > now


def job_format(word: str) -> str:
    """The value of ``squeue -O`` for :func:`parse_jobs`; ``word`` is random, letters and digits only."""
    if not re.fullmatch(r"[A-Za-z0-9]+", word):
        raise InvalidInput(f"the separator word {word!r} must be letters and digits")
    return ",".join(f"{field}:{_separator(word)}" for field in _JOB_FIELDS)


def _separator(word: str) -> str:
    return f"|{word}|"


def parse_jobs(text: str, word: str) -> tuple[JobRecord, ...]:
    """Parses ``squeue -a -h -t all -O <job_format(word)>`` printed with ``SLURM_TIME_FORMAT=%s``.

    Raises Unreachable when the text cannot be understood: then what Slurm wanted to say is unknown.
    """
    fields = text.split(_separator(word))
    tail = fields.pop()
    if tail.strip() or len(fields) % len(_JOB_FIELDS):
        raise Unreachable(f"squeue's answer is cut short after {len(fields)} fields")
    records = []
    for start in range(0, len(fields), len(_JOB_FIELDS)):
        row = dict(zip(_JOB_FIELDS, fields[start : start + len(_JOB_FIELDS)], strict=True))
        records.append(_job_record(row))
    return tuple(records)


def _job_record(row: dict[str, str]) -> JobRecord:
    row = {field: value if field == "Name" else value.strip() for field, value in row.items()}
    try:
        state = row["State"].split()[0].upper()
        priority = int(row["PriorityLong"])
        job = SlurmJob(
            id=str(int(row["JobID"])),
            user=row["UserName"],
            name=row["Name"],
            state=state,
            restarts=int(row["RestartCnt"]),
            nodes=expand(row["NodeList"]),
            num_nodes=_first_number(row["NumNodes"]),
            requeue=row["Requeue"] == "1",
            batch=row["BatchFlag"] == "1",
            held=_held(state, priority, row["Reason"]),
            reason=row["Reason"],
            start_time=parse_time(row["StartTime"]),
            end_time=parse_time(row["EndTime"]),
            gpus=_gpus(row),
        )
    except (ValueError, IndexError, InvalidInput) as error:
        raise Unreachable(f"squeue's line of job {row['JobID']!r} cannot be understood: {error}") from None
    return JobRecord(
        job=job,
        target=_target(job.id, row["JobArrayID"]),
        priority=priority,
        eligible_at=parse_time(row["EligibleTime"]),
        submitted_at=parse_time(row["SubmitTime"]),
    )


def _first_number(text: str) -> int:
    """``2`` or, for a job that gives a range, ``2-4``."""
    return int(text.split("-", maxsplit=1)[0])


# "gres/gpu=2" (allocated), "gres:gpu:h100:2", "gres:gpu" or "gres/gpu:1" (asked; the forms differ by release).
_GPU = re.compile(r"(?:^|,)gres[:/]gpu(?::[A-Za-z][\w.-]*)?(?:[:=](\d+))?(?=,|$)")


def _gpus(row: dict[str, str]) -> int | None:
    """GPUs of the whole job: what Slurm allocated where it tracks that, else what the job asked for."""
    shares = (
        ("tres-alloc", 1),
        ("tres-per-job", 1),
        ("tres-per-node", _first_number(row["NumNodes"])),
        ("tres-per-task", _first_number(row["NumTasks"])),
    )
    for field, times in shares:
        counts = [int(number or 1) for number in _GPU.findall(row[field])]
        if counts:
            return max(counts) * times
    return None


def _held(state: str, priority: int, reason: str) -> bool:
    # RUNNING + priority 0 is a job that was held while it runs: it stays held once it is requeued.
    return priority == 0 or state == "REQUEUE_HOLD" or (state in WAITING_JOB_STATES and "held" in reason.lower())


def _target(job_id: str, array_id: str) -> str:
    if re.fullmatch(r"\d+_\d+", array_id):
        return array_id
    component = re.fullmatch(r"(\d+)\+\d+", array_id)
    return component[1] if component else job_id


def parse_time(text: str) -> float | None:
    """Unix seconds as printed with ``SLURM_TIME_FORMAT=%s``; None for N/A, NONE, Unknown."""
    return float(text) if re.fullmatch(r"\d{1,11}", text) else None  # 11 digits end in the year 5138


# With the key that always follows: an administrator's comment may hold a line break and the word NodeName= behind it.
_NODE_LINE = re.compile(r"^NodeName=(?=\S+ +(?:Arch|CoresPerSocket)=)", re.MULTILINE)
_PAIR = re.compile(r"(?:^| )([A-Z]\w*)=(.*?)(?= [A-Z]\w*=|\s*$)", re.DOTALL)
# Free text goes up to the mark that Slurm itself appends: " [user@time]", the end of the line or the next key.
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\s\[\]@]+@[^\s\]]+\](?= [A-Z]\w*=|\s*$)|\s*$)", re.DOTALL)


def parse_nodes(text: str) -> tuple[SlurmNode, ...]:
    """Parses ``scontrol -a show node -d -o``; Unreachable when it cannot be understood."""
    if not text.strip() or text.startswith("No nodes in the system"):
        return ()
    starts = [match.start() for match in _NODE_LINE.finditer(text)]
    if not starts or starts[0] != 0:
        raise Unreachable(f"scontrol's list of nodes cannot be understood: {text[:80]!r}")
    ends = [*starts[1:], len(text)]
    return tuple(_node(text[start:end]) for start, end in zip(starts, ends, strict=True))


def _node(line: str) -> SlurmNode:
    reason = _REASON.search(line)
    before_free_text = line[: reason.start()] if reason else line
    fields: dict[str, str] = {}
    for key, value in _PAIR.findall(before_free_text):
        fields.setdefault(key, value.strip())  # the first wins: what follows may sit inside somebody's comment
    if "State" not in fields:
        raise Unreachable(f"scontrol's line of node {fields.get('NodeName', '?')!r} has no state")
    return SlurmNode(
        name=fields["NodeName"],
        states=parse_node_states(fields["State"]),
        reason=reason[1].strip() if reason else "",
        address=fields.get("NodeAddr", ""),
        gres=_known(fields.get("Gres", "")),
        gres_used=_known(fields.get("GresUsed", "")),
    )


def _known(value: str) -> str:
    return "" if value in {"(null)", "N/A"} else value


def parse_node_states(text: str) -> frozenset[str]:
    """``IDLE+DRAIN+NOT_RESPONDING`` or, with the short suffix of some versions, ``IDLE*+DRAIN``."""
    states: set[str] = set()
    for part in text.upper().split("+"):
        word = part.rstrip("*~#!%$@^-")
        if "*" in part[len(word) :]:
            states.add("NOT_RESPONDING")
        if word:
            states.add(word)
    return frozenset(states)


def parse_version(text: str) -> str:
    """The controller's version out of ``scontrol show config``; Unreachable when it is not there."""
    match = re.search(r"^SLURM_VERSION\s*=\s*(\d+\.\d+\.\d+\S*)", text, re.MULTILINE)
    if match is None:
        raise Unreachable("scontrol show config does not name Slurm's version")
    return match[1]


def version_tuple(version: str) -> tuple[int, ...]:
    """``24.11.5`` as (24, 11, 5); a suffix such as ``-0rc1`` is cut off."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("-", maxsplit=1)[0]))


def relaunch_needs_pause(version: str) -> bool:
    """Whether a job started again in the second of its kill may fail ("Job credential revoked").

    Measured: 5 of 8 launches on 22.05.8, 0 of 12 on 24.11.5 and 26.05.5; the releases between were not measured.
    """
    return version_tuple(version) < (24, 11, 1)


# Patterns; the first match wins. Texts: src/common/slurm_errno.c and the clients of Slurm 22.05, 24.11 and 26.05.
_ERRORS: tuple[tuple[str, type[EverstepError]], ...] = (
    ("Invalid job id", NotFound),
    ("Invalid node name", NotFound),
    (r"(?m)^Node \S+ not found", NotFound),
    ("Requested nodes are busy", Conflict),
    ("pending execution", Conflict),  # "is pending execution", "is no longer pending execution"
    ("already completing or completed", Conflict),
    ("already finished", Conflict),
    ("Invalid node state", Conflict),  # "specified" up to 24.11, "transition" in 26.05
    ("Invalid user id", Refused),
    ("Access/permission denied", Refused),
    ("Access denied", Refused),
    ("Only batch jobs are accepted", Refused),
    ("presently disabled", Refused),
    ("not supported on this system", Refused),
    ("Unable to contact slurm controller", Unreachable),
    ("Zero Bytes were transmitted", Unreachable),
    ("Socket timed out", Unreachable),
    ("Connection re(fused|set)", Unreachable),
    ("standby mode", Unreachable),
    ("Unexpected message received", Unreachable),
)


def error_of(command: str, output: str) -> EverstepError:
    """The typed error for a failed command, out of what it printed; an unknown text becomes RetryLater.

    Args:
        command: the words to name it by in the message, without values that are secret.
        output: standard error, then standard output.
    """
    line = next((line.strip() for line in output.splitlines() if line.strip()), "no message")
    kind = next((kind for pattern, kind in _ERRORS if re.search(pattern, output)), RetryLater)
    return kind(f"{command}: {line[:300]}")
