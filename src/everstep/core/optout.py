"""Labels by which people forbid that a node is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep.core.cluster_state import NodeView, PodView


def _matching(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    for key in keys:
        name, has_value, value = key.partition("=")
        if name in labels and (not has_value or labels[name] == value):
            return f"{name}={labels[name]}"
    return None


def forbidden_by(node: NodeView | None, pods: Iterable[PodView], keys: Iterable[str], *, node_dead: bool) -> str:
    """Why the node may not be replaced, in one sentence; "" when nothing forbids it.

    A dead node has nothing left to disrupt: labels of its pods do not block, the label of the node itself does.
    """
    keys = tuple(keys)
    if node and (label := _matching(node.labels, keys)):
        return f"node {node.name} carries the label {label}"
    if node_dead:
        return ""
    for pod in pods:
        if not pod.finished and (label := _matching(pod.labels, keys)):
            return f"pod {pod.namespace}/{pod.name} carries the label {label}"
    return ""


def ignored_on_dead_node(pods: Iterable[PodView], keys: Iterable[str]) -> tuple[str, ...]:
    """The pods whose opt-out does not count because their node is dead; the record names them."""
    keys = tuple(keys)
    return tuple(f"{p.namespace}/{p.name}" for p in pods if not p.finished and _matching(p.labels, keys))
