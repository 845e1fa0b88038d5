"""What the controller last saw of all of Slurm, kept for whoever must not wait for Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.foreign import ForeignDrain, drain_condition, drain_fault, foreign_drains, foreign_faults
from everstep.core.health import Fault
from everstep.core.policy import Policy
from everstep.core.scheduler_state import SchedulerLook

FRESH = 30.0  # seconds for which a look may be used


@dataclass(slots=True)
class Sight:
    """One look at a time, and since when each drain of somebody else's has been seen."""

    _look: SchedulerLook | None = None
    _taken_at: float = 0.0
    _drains: dict[str, ForeignDrain] = field(default_factory=dict)
    _since: dict[tuple[str, ForeignDrain], float] = field(default_factory=dict)

    def note(self, now: float, look: SchedulerLook) -> None:
        """Takes in a look; drains in a cluster that is silent stay what they were."""
        self._look, self._taken_at = look, now
        silent = {each.cluster for each in look.silent}
        kept = {node: drain for node, drain in self._drains.items() if drain.cluster in silent}
        self._drains = {**kept, **foreign_drains(look)}
        self._since = {item: self._since.get(item, now) for item in self._drains.items()}

    def look(self, now: float) -> SchedulerLook | None:
        """The last look while it is fresh."""
        return self._look if now - self._taken_at <= FRESH else None

    def foreign(self, now: float, nodes: Sequence[NodeView], policy: Policy) -> Mapping[str, tuple[Fault, ...]]:
        """Evidence of others by node, for the nodes that have any."""
        if not policy.node_conditions and not policy.slurm_drains:
            return {}
        found = {node.name: self._of(now, node, policy) for node in nodes}
        return {name: faults for name, faults in found.items() if faults}

    def drain_condition(self, now: float, node: NodeView) -> NodeCondition | None:
        """What the node should show of a drain in Slurm; None: leave it as it is."""
        look = self.look(now)
        return None if look is None else drain_condition(now, node, self._drains, look)

    def _of(self, now: float, node: NodeView, policy: Policy) -> tuple[Fault, ...]:
        drain = self._drains.get(node.name) if self.look(now) is not None else None
        if drain is None:
            return foreign_faults(now, node, policy)
        fault = drain_fault(now, node, drain, self._since[node.name, drain], policy)
        return (*foreign_faults(now, node, policy), *((fault,) if fault else ()))
