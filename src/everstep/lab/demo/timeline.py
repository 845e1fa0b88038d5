"""Draws the heal: GPU utilisation per node over time, the steps of the record marked on it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from everstep.lab.demo.evidence import Evidence

INK, MUTED, FAULT = "#1b1f24", "#8a939e", "#c8102e"
NODE_COLOURS = ("#0b6e99", "#e08e0b", "#3a7d44", "#7a4fa3", "#9c4a2f", "#4f5d75")
# Steps closer than this many seconds share one label: they were decided in one pass.
MERGE_SECONDS = 0.05


def draw_timeline(evidence: Evidence, path: Path) -> None:
    """Writes a PNG of one row per node, in the order of their names, and a ruler of steps below."""
    import matplotlib  # noqa: PLC0415 - half a second to import, needed only here

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    zero = evidence.fault.at
    by_node: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for sample in evidence.samples:
        by_node[sample.node].append((sample.at - zero, sample.utilization_percent))
    nodes = sorted(by_node)
    labels = _labels(evidence)
    height = 1.15 * max(1, len(nodes)) + 0.24 * len(labels) + 1.2
    ratios = [1.15] * max(1, len(nodes)) + [0.24 * len(labels) + 0.2]
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9, "axes.edgecolor": MUTED})
    figure, axes = plt.subplots(
        len(ratios), 1, sharex=True, figsize=(11, height), gridspec_kw={"height_ratios": ratios, "hspace": 0.18}
    )
    for axis, node, colour in zip(axes, nodes, NODE_COLOURS * 4, strict=False):
        _draw_node(axis, node, by_node[node], colour, evidence)
    _draw_steps(axes[-1], labels)
    for axis in axes:
        for label in labels:
            axis.axvline(label[0], color=MUTED, linewidth=0.6, alpha=0.5, zorder=0)
        axis.axvline(0, color=FAULT, linewidth=1.4, zorder=1)
    axes[-1].set_xlabel("seconds since the fault")
    axes[0].set_title(_title(evidence), loc="left", color=INK, fontsize=11, fontweight="bold", pad=10)
    figure.savefig(path, dpi=140, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def _title(evidence: Evidence) -> str:
    fault, job = evidence.fault, evidence.job
    what = f"{fault.kind.upper()} {fault.code} on {fault.node}" if fault.kind != "power" else f"{fault.node} lost power"
    return f"{what}: job {job.id} goes on, Slurm {evidence.slurm_version}"


def _role(node: str, evidence: Evidence) -> str:
    if node == evidence.fault.node:
        return "faulty"
    if node == evidence.record.replacement:
        return "spare, then in service"
    return "in service"


def _draw_node(axis: Any, node: str, points: list[tuple[float, float | None]], colour: str, evidence: Evidence) -> None:
    x = [t for t, _ in points]
    y = [float("nan") if u is None else u for _, u in points]
    axis.fill_between(x, 0, y, color=colour, alpha=0.25, linewidth=0)
    axis.plot(x, y, color=colour, linewidth=1.5)
    axis.set_ylim(0, 105)
    axis.set_yticks([0, 100], ["0", "100 %"])
    axis.set_ylabel(f"{node}\n{_role(node, evidence)}", rotation=0, ha="right", va="center", labelpad=14, color=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _labels(evidence: Evidence) -> list[tuple[float, str]]:
    """(seconds since the fault, step names), near ones merged, in order of time."""
    merged: list[tuple[float, str]] = []
    for step in sorted(evidence.record.steps, key=lambda s: s.at):
        at = step.at - evidence.fault.at
        if merged and at - merged[-1][0] < MERGE_SECONDS:
            merged[-1] = (merged[-1][0], f"{merged[-1][1]}, {step.name}")
        else:
            merged.append((at, step.name))
    return merged


def _draw_steps(axis: Any, labels: list[tuple[float, str]]) -> None:
    """One line of text a label, going down like stairs, so that no two collide."""
    axis.set_ylim(len(labels), -0.5)
    axis.set_yticks([])
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    for row, (at, text) in enumerate(labels):
        axis.plot([at], [row], "o", color=INK, markersize=4)
        axis.text(at, row, f"  {text}  +{at:.1f} s", va="center", ha="left", color=INK, clip_on=False)
