"""Labels and annotations by which people forbid that a node is replaced."""

from __future__ import annotations

from collections.abc import Iterable

from everstep.core.cluster_state import NodeView, PodView


def _matching(thing: NodeView | PodView, keys: Iterable[str]) -> str | None:
    for key in keys:
        name, has_value, value = key.partition("=")
        for what, given in (("label", thing.labels), ("annotation", thing.annotations)):
            if name in given and (not has_value or given[name] == value):
                return f"{what} {name}={given[name]}"
    return None


def forbidden_by(node: NodeView | None, pods: Iterable[PodView], keys: Iterable[str], *, node_dead: bool) -> str:
    """Why the node may not be replaced, in one sentence; "" when nothing forbids it.

    A dead node has nothing left to disrupt: marks on its pods do not block, a mark on the node itself does.
    """
    keys = tuple(keys)
    if node and (mark := _matching(node, keys)):
        return f"node {node.name} carries the {mark}"
    if node_dead:
        return ""
    for pod in pods:
        if not pod.finished and (mark := _matching(pod, keys)):
            return f"pod {pod.namespace}/{pod.name} carries the {mark}"
    return ""


def ignored_on_dead_node(pods: Iterable[PodView], keys: Iterable[str]) -> tuple[str, ...]:
    """The pods whose opt-out does not count because their node is dead; the record names them."""
    keys = tuple(keys)
    return tuple(f"{p.namespace}/{p.name}" for p in pods if not p.finished and _matching(p, keys))
