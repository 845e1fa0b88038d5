"""Writes what the demo proved: ``report.json`` for machines, ``timeline.png`` and ``report.html`` for people."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from everstep.lab.demo.evidence import Evidence
from everstep.lab.demo.proof import Claim, durations, first_difference, steps_lost
from everstep.lab.demo.timeline import draw_timeline


def as_json(evidence: Evidence, claims: Sequence[Claim]) -> dict[str, Any]:
    """The machine-readable report; times are RFC 3339 in UTC, durations seconds."""
    fault, job, record = evidence.fault, evidence.job, evidence.record
    last = job.attempts[-1] if job.attempts else None
    return {
        "fault": {
            "kind": fault.kind,
            "code": fault.code,
            "node": fault.node,
            "gpu": fault.gpu,
            "at": _rfc3339(fault.at),
        },
        "job": {
            "id": job.id,
            "restarts": job.restarts,
            "resumed_from": last.resumed_from if last and len(job.attempts) > 1 else None,
            "steps_lost": steps_lost(evidence),
            "final_step": last.highest_step if last else None,
            "trajectory_identical": first_difference(evidence) is None,
        },
        "steps": [{"name": s.name, "at": _rfc3339(s.at), "reason": s.reason} for s in record.steps],
        "durations": asdict(durations(evidence)),
        "nodes": {"failed": fault.node, "replacement": record.replacement},
        "slurm": evidence.slurm_version,
        "claims": [asdict(claim) for claim in claims],
        "proven": all(claim.proven for claim in claims),
    }


def write_report(evidence: Evidence, claims: Sequence[Claim], folder: Path) -> dict[str, Any]:
    """Writes the three files into ``folder`` (made if missing) and returns the JSON report."""
    folder.mkdir(parents=True, exist_ok=True)
    report = as_json(evidence, claims)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    picture = folder / "timeline.png"
    draw_timeline(evidence, picture)
    (folder / "report.html").write_text(_html(evidence, report, claims, picture))
    return report


def _html(evidence: Evidence, report: dict[str, Any], claims: Sequence[Claim], picture: Path) -> str:
    import jinja2  # noqa: PLC0415 - only the report needs it

    source = resources.files("everstep.lab.demo").joinpath("report.html.jinja").read_text()
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
    fault_at = evidence.fault.at
    return template.render(
        report=report,
        claims=claims,
        job=evidence.job,
        record=evidence.record,
        steps=[{"name": s.name, "after": s.at - fault_at, "reason": s.reason} for s in evidence.record.steps],
        picture=base64.b64encode(picture.read_bytes()).decode(),
        took=evidence.finished_at - evidence.started_at,
    )


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
