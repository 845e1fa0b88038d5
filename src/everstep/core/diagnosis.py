"""What an agent knows about its node, as a value, and the rules by which observations change it.

The diagnosis is stored whole in NodeHealth, log position included, in one write. So an agent that is killed at any
moment starts from a state in which every record up to ``sequence`` has been counted once, and none beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.core.health import Evidence, Fault, FaultClass, Gpu, Severity, Verdict

MAX_FAULTS = 64  # a bound on the stored object; the catalogue's codes on eight GPUs of one broken node stay below it
LOST_AFTER = 2  # readings in a row: one alone may be a driver that was just busy

_ACCUSING = frozenset((FaultClass.HARDWARE, FaultClass.FABRIC, FaultClass.STORAGE))
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything an agent would say of its node.

    Attributes:
        boot_id: the boot that ``sequence`` counts in.
        sequence: number of the last kernel record that was judged to be evidence; -1 before the first.
        gpus: last inventory; a GPU that vanished stays in it, marked lost.
        broken: sources that cannot be read now, each with the reason.
        lost_records: kernel records of this boot that were overwritten before they were read.
        suspected: serials seen lost or wanting recovery, with the number of readings in a row. Not stored.
    """

    boot_id: str
    sequence: int = -1
    faults: tuple[Fault, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    lost_records: int = 0
    suspected: tuple[tuple[str, int], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Faulty when a critical fault accuses the node; else Unknown while a source is broken; else Healthy."""
        if any(accuses(fault) for fault in self.faults):
            return Verdict.FAULTY
        return Verdict.UNKNOWN if self.broken else Verdict.HEALTHY

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        accusing = [fault for fault in self.faults if accuses(fault)]
        if accusing:
            where = f" on GPU {accusing[0].gpu_index}" if accusing[0].gpu_index is not None else ""
            more = f", and {len(accusing) - 1} more" if len(accusing) > 1 else ""
            return f"{accusing[0].reason}{where}{more}"
        if self.broken:
            return "; ".join(f"{name} cannot be read: {why}" for name, why in self.broken)
        noted = f"{len(self.faults)} faults are noted, none accuses the node" if self.faults else "no fault is active"
        return f"{len(self.gpus)} GPUs answer, {noted}"


def accuses(fault: Fault) -> bool:
    """Whether a fault alone makes its node Faulty. Application-class and suspect faults never do."""
    return fault.severity is Severity.CRITICAL and fault.fault_class in _ACCUSING


def resumed(stored: Diagnosis | None, boot_id: str) -> Diagnosis:
    """The diagnosis to start from: the stored one in the same boot; after a reboot its faults wait for proof."""
    if stored is None:
        return Diagnosis(boot_id)
    if stored.boot_id == boot_id:
        return replace(stored, broken=(), suspected=())
    return Diagnosis(boot_id, faults=stored.faults, gpus=stored.gpus)


def with_source(diagnosis: Diagnosis, source: str, why: str | None) -> Diagnosis:
    """Notes that ``source`` is broken for the reason ``why``, or (None) that it works."""
    others = tuple(item for item in diagnosis.broken if item[0] != source)
    return replace(diagnosis, broken=others if why is None else tuple(sorted((*others, (source, why)))))


def with_evidence(diagnosis: Diagnosis, sequence: int, fault: Fault, now: float) -> Diagnosis:
    """Counts a fault that kernel record ``sequence`` shows; a record that was counted before changes nothing.

    Args:
        fault: as judged from the line; its GPU is looked up in the inventory here.
        now: Unix seconds of the agent's clock.
    """
    if sequence <= diagnosis.sequence:
        return diagnosis
    found = _counted(diagnosis, placed(fault, diagnosis.gpus), now)
    return replace(found, sequence=sequence)


def placed(fault: Fault, gpus: Sequence[Gpu]) -> Fault:
    """The fault with index and serial of the GPU at its PCI address; as it is where none is known."""
    if fault.pci is None:
        return fault
    address = normal_pci(fault.pci)
    for gpu in gpus:
        if normal_pci(gpu.pci) == address:
            key = f"{fault.kind}:{fault.code}@{gpu.serial or fault.pci}"
            return replace(fault, key=key, gpu_index=gpu.index, gpu_serial=gpu.serial or None)
    return fault


def normal_pci(address: str) -> str:
    """``domain:bus:device`` in lower case with a four-digit domain: logs, NVML and nvidia-smi all differ."""
    parts = address.strip().lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    return ":".join([parts[0].lstrip("0").rjust(4, "0"), *parts[1:]])


def with_gpus(
    diagnosis: Diagnosis, reading: Sequence[Gpu], judged: Sequence[tuple[Gpu, Fault]], now: float
) -> Diagnosis:
    """Takes in one answer of the driver: new inventory, faults that only the driver shows, and proof of repair.

    Args:
        reading: the GPUs as the driver lists them now.
        judged: ``(gpu, fault)`` for each GPU of :func:`unwell`, by the catalogue.
    """
    gpus = merged(diagnosis.gpus, reading)
    streak = dict(diagnosis.suspected)
    suspected = tuple((gpu.serial, min(streak.get(gpu.serial, 0) + 1, LOST_AFTER)) for gpu, _ in judged)
    found = replace(diagnosis, gpus=gpus, suspected=suspected)
    for (gpu, fault), (_, times) in zip(judged, suspected, strict=True):
        if times >= LOST_AFTER and not _explained(found, gpu):
            found = _counted(found, placed(fault, gpus), now)
    return replace(found, faults=tuple(fault for fault in found.faults if not _repaired(fault, found)))


def merged(before: Sequence[Gpu], reading: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The inventory after a reading. As many GPUs as are missing from before stay in it, marked lost.

    A part that was exchanged for another leaves: the count is the same, the serial is not.
    """
    seen = {gpu.serial for gpu in reading}
    missing = [gpu for gpu in before if gpu.serial not in seen]
    deficit = max(0, len(before) - len(reading))
    gpus = list(reading)
    for gpu in missing[:deficit]:
        taken = {other.index for other in gpus}  # the driver numbers the remaining ones anew
        index = gpu.index if gpu.index not in taken else max(taken) + 1
        gpus.append(replace(gpu, index=index, lost=True))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def unwell(gpus: Sequence[Gpu]) -> list[tuple[Gpu, Evidence]]:
    """What an inventory alone shows: GPUs that are lost, and GPUs that the driver wants recovered."""
    found = []
    for gpu in gpus:
        if gpu.lost or gpu.recovery_action != "none":
            code = "gpu_lost" if gpu.lost else "gpu_recovery"
            line = f"GPU {gpu.index} ({gpu.serial}): lost={gpu.lost} recovery_action={gpu.recovery_action}"
            found.append((gpu, Evidence(kind="host", code=code, pci=gpu.pci, line=line)))
    return found


def _counted(diagnosis: Diagnosis, fault: Fault, now: float) -> Diagnosis:
    known = {item.key: item for item in diagnosis.faults}
    before = known.get(fault.key)
    if before is not None and before.boot_id == diagnosis.boot_id:
        known[fault.key] = replace(
            _worse(fault, before),
            first_seen=before.first_seen,
            last_seen=now,
            count=before.count + 1,
            boot_id=before.boot_id,
        )
    else:
        known[fault.key] = replace(fault, first_seen=now, last_seen=now, count=1, boot_id=diagnosis.boot_id)
    kept = sorted(known.values(), key=lambda item: (not accuses(item), -_RANK[item.severity], item.first_seen))
    return replace(diagnosis, faults=tuple(kept[:MAX_FAULTS]))


def _worse(new: Fault, old: Fault) -> Fault:
    """Of two sightings of one fault the graver, the later one when they are equal; injected only if both were."""
    graver = new if _RANK[new.severity] >= _RANK[old.severity] else old
    return replace(graver, injected=new.injected and old.injected)


def _explained(diagnosis: Diagnosis, gpu: Gpu) -> bool:
    """Whether an active fault already accuses this GPU."""
    return any(accuses(fault) and fault.gpu_serial == gpu.serial for fault in diagnosis.faults)


def _repaired(fault: Fault, diagnosis: Diagnosis) -> bool:
    """Proof that a fault is over: another boot, and the driver finds the GPU well (or another one in its place)."""
    if fault.boot_id == diagnosis.boot_id:
        return False
    if fault.gpu_serial is None:
        return all(not gpu.lost and gpu.recovery_action == "none" for gpu in diagnosis.gpus)
    return all(
        not gpu.lost and gpu.recovery_action == "none" for gpu in diagnosis.gpus if gpu.serial == fault.gpu_serial
    )
