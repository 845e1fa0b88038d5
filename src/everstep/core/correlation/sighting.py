"""One piece of evidence, placed: on which device, when, in which boot, and under whose job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.gpu_inventory import normal_pci
from everstep.core.health import Evidence, Gpu

NODE = "node"  # the device of evidence that names none


@dataclass(frozen=True, slots=True)
class Job:
    """A job that used a device.

    Attributes:
        lineage: what makes two jobs related, usually user and job name: a job that was submitted again, requeued or
            split into an array runs the same code. Two jobs with different lineages are unrelated.
    """

    id: str
    lineage: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """Evidence with all that its line does not say.

    Attributes:
        device: serial of the GPU where it is known, else the PCI address or what else the line names, else "node".
        at: Unix seconds of the observer's own clock; logs drift.
        jobs: jobs that used the device then.
        cancelled: whether such a job was being cancelled: then removed channels need no other reason.
        source: name of the state source that shows it, "" for a line of a log. A state is over when its source no
            longer shows it; a line never takes itself back.
    """

    evidence: Evidence
    at: float
    boot_id: str
    device: str = NODE
    gpu_index: int | None = None
    gpu_serial: str | None = None
    jobs: tuple[Job, ...] = ()
    cancelled: bool = False
    source: str = ""


def placed_sighting(
    evidence: Evidence, at: float, boot_id: str, gpus: Sequence[Gpu] = (), jobs: Sequence[Job] = ()
) -> Sighting:
    """The sighting of ``evidence`` on a node with these GPUs."""
    gpu = _gpu_of(evidence, gpus)
    if gpu is not None:
        return Sighting(
            evidence, at, boot_id, gpu.serial or normal_pci(gpu.pci), gpu.index, gpu.serial or None, tuple(jobs)
        )
    device = normal_pci(evidence.pci) if evidence.pci else evidence.subject or NODE
    return Sighting(evidence, at, boot_id, device, jobs=tuple(jobs))


def _gpu_of(evidence: Evidence, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU that a line names, by its address or as ``GPU6``."""
    if evidence.pci is not None:
        address = normal_pci(evidence.pci)
        return next((gpu for gpu in gpus if normal_pci(gpu.pci) == address), None)
    if evidence.kind == "host" and evidence.subject and evidence.subject.startswith("GPU"):
        number = evidence.subject[3:]
        return next((gpu for gpu in gpus if number.isdigit() and gpu.index == int(number)), None)
    return None
