"""What the agent asks of this node: its GPUs, and every other source that can be asked how it is."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.apps.agent.state import State
from everstep.apps.agent.supervision import Question
from everstep.core.diagnosis import GPUS, Diagnosis, with_gpus, with_part, with_reading
from everstep.core.health import Evidence, Gpu
from everstep.ports import GpuReader, PartlyUnreachable, StateSource

GPU_PERIOD = 5.0  # seconds between two questions to the driver


def about_gpus(state: State, reader: GpuReader, period: float = GPU_PERIOD) -> Question[Sequence[Gpu]]:
    """The inventory, asked for at once when the log accuses a GPU."""

    def take(diagnosis: Diagnosis, gpus: Sequence[Gpu], asked_at: float) -> Diagnosis:
        return with_gpus(diagnosis, gpus, state.catalog, asked_at, state.now())

    return Question(GPUS, period, reader.gpus, take, wake=state.look)


def about(state: State, source: StateSource) -> Question[Sequence[Evidence]]:
    """One state source."""

    def take(diagnosis: Diagnosis, found: Sequence[Evidence], asked_at: float) -> Diagnosis:
        return with_reading(diagnosis, source.name, found, state.catalog, state.now())

    async def ask() -> Sequence[Evidence]:
        try:
            return await source.read()
        except PartlyUnreachable as part:
            now = state.now()
            state.update(with_part(state.diagnosis, source.name, part.evidence, state.catalog, now))
            raise

    return Question(source.name, source.period, ask, take)
