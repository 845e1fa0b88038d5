"""The ports that the engine works with, in one bundle."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.ports import Clock, Cluster, FleetIncidents, Notifier, Provider, Remediations, Scheduler


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside the process."""

    clock: Clock
    cluster: Cluster
    scheduler: Scheduler
    provider: Provider
    notifier: Notifier
    remediations: Remediations
    fleet_incidents: FleetIncidents
