"""One healed run, as the demo would collect it; the tests bend one thing at a time."""

from __future__ import annotations

from everstep.lab.demo.evidence import (
    Attempt,
    Evidence,
    InjectedFault,
    JobEvidence,
    NodeEvidence,
    Record,
    Sample,
    Step,
)
from everstep.lab.demo.proof import PROMISED_STEPS

T = 1_700_000_000.0
AFTER = (0.2, 0.3, 0.5, 0.6, 2.7, 3.5, 0.45, 0.7, 4.0, 1.2, 3.0, 8.6)


def healed() -> Evidence:
    reference = {step: float(1 / (step + 1)).hex() for step in range(100)}
    steps = sorted((T + at, name) for name, at in zip(PROMISED_STEPS, AFTER, strict=True))
    first = Attempt(0, None, 40, T - 9, 40, 2.0, None, "stopped", {s: reference[s] for s in range(41)})
    second = Attempt(1, 40, 99, T + 8.6, 99, 2.0, 0.1, "finished", {s: reference[s] for s in range(41, 100)})
    return Evidence(
        slurm_version="24.11",
        fault=InjectedFault("xid", "79", "gpu-1", 0, T),
        job=JobEvidence(
            submitted_id="1",
            id="1",
            state="COMPLETED",
            restarts=1,
            nodes_before=("gpu-1", "gpu-2"),
            nodes_after=("gpu-2", "gpu-3"),
            steps_wanted=100,
            attempts=(first, second),
            reference=reference,
            started_after=T + 7.5,
        ),
        record=Record(
            "gpu-1-79",
            "Succeeded",
            "",
            tuple(Step(n, at, f"because {n}") for at, n in steps),
            "gpu-3",
            T + 4.1,
            T + 6.0,
        ),
        nodes={
            "gpu-1": NodeEvidence("gpu-1", None, False, True, "Faulty", frozenset({"IDLE", "DRAIN"})),
            "gpu-3": NodeEvidence("gpu-3", "gpu", True, True, "Healthy", frozenset({"IDLE"})),
        },
        notices=("in the job's output", "Kubernetes Event"),
        order_violations=(),
        samples=tuple(_samples()),
        started_at=T - 30,
        finished_at=T + 40,
    )


def _samples() -> list[Sample]:
    out = []
    for tick in range(-20, 30):
        working = not 0 <= tick < 9
        out.append(Sample(T + tick, "gpu-1", 85.0 + tick % 3 if tick < 0 else (None if tick > 4 else 0.0)))
        out.append(Sample(T + tick, "gpu-2", 83.0 + tick % 4 if working else 1.0))
        out.append(Sample(T + tick, "gpu-3", 84.0 + tick % 3 if tick >= 9 else 0.0))
    return out
