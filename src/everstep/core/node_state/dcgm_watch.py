"""Judging one answer of DCGM's exporter after another.

The exporter's XID is a gauge that keeps the last value: the same XID twice cannot be told from once, and one that is
days old looks as if it were new (NVIDIA/dcgm-exporter 190, 500, 502). So an XID counts when the gauge changes to it
while somebody watches, or when the exporter's own count of the last minutes names it. One that stood there before is
said to be of unknown age, and accuses nobody. What has counted stays until the machine restarts: nothing that the
exporter says later proves that it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.core.health import Evidence
from everstep.core.node_state.counters import HOUR, Counter, counted, risen
from everstep.core.node_state.dcgm_metrics import (
    CLOCK_REASONS,
    ECC_DOUBLE,
    NVLINK_RECOVERY,
    REMAP_FAILURE,
    REMAP_PENDING,
    XID,
    GpuMetrics,
)

SLOW_FOR = 600.0  # seconds; gpud: a slowdown that lasts for 10 minutes is one
# NVML's clocks event reasons (nvml.h): hardware thermal slowdown, hardware power brake.
_SLOWDOWNS = {0x40: ("gpu_thermal_slowdown", "is too hot"), 0x80: ("gpu_power_brake", "is short of power")}
_FLAGS = {
    REMAP_PENDING: ("gpu_remap_pending", "a row waits to be remapped"),
    REMAP_FAILURE: ("gpu_remap_failed", "a row could not be remapped"),
    ECC_DOUBLE: ("gpu_ecc_uncorrected", "uncorrectable memory errors since the driver was loaded"),
}


@dataclass(frozen=True, slots=True)
class GpuWatch:
    """What was seen of one GPU so far.

    Attributes:
        last_xid: the last XID other than 0 that the gauge showed; 0 for none.
        held: XIDs that came while somebody watched.
        aged: the XID that stood there at the first look, whose age is unknown.
        slow_since: since when each slowdown lasts, in seconds since boot.
    """

    last_xid: int = 0
    held: tuple[str, ...] = ()
    aged: str = ""
    recoveries: Counter | None = None
    slow_since: Mapping[int, float] = field(default_factory=dict)


def watched(before: GpuWatch | None, gpu: GpuMetrics, now: float, known: frozenset[str] = frozenset()) -> GpuWatch:
    """What is known of a GPU after one more answer.

    Args:
        before: None at the first look.
        now: seconds since boot.
        known: XIDs that are on record for this GPU in this boot: the gauge shows one of them with good reason.
    """
    shown = gpu.values.get(XID, 0)
    watch = before or GpuWatch()
    new = set(gpu.xids)
    aged = watch.aged
    if before is None and shown:
        if str(shown) in known:
            new.add(str(shown))
        elif str(shown) not in new:
            aged = str(shown)
    elif shown and shown != watch.last_xid:
        new.add(str(shown))
    reasons = next((gpu.values[name] for name in CLOCK_REASONS if name in gpu.values), 0)
    recoveries = gpu.values.get(NVLINK_RECOVERY)
    return GpuWatch(
        last_xid=shown or watch.last_xid,
        held=(*watch.held, *sorted(new - set(watch.held))),
        aged="" if aged in new else aged,
        recoveries=watch.recoveries if recoveries is None else counted(watch.recoveries, recoveries, now),
        slow_since={bit: watch.slow_since.get(bit, now) for bit in _SLOWDOWNS if reasons & bit},
    )


def gpu_evidence(gpu: GpuMetrics, watch: GpuWatch, now: float) -> list[Evidence]:
    """What the exporter shows of one GPU now."""
    name = f"GPU {gpu.index} ({gpu.uuid})" if gpu.uuid else f"GPU {gpu.index}"
    about = Evidence("host", "", pci=gpu.pci, subject=gpu.uuid or f"GPU{gpu.index}")
    found = [
        replace(about, kind="xid", code=code, line=f"DCGM exporter: XID {code} came up on {name}")
        for code in watch.held
    ]
    if watch.aged:
        text = f"DCGM exporter: XID {watch.aged} on {name}, of unknown age"
        found.append(replace(about, code="dcgm_xid", line=text))
    for metric, (code, words) in _FLAGS.items():
        if gpu.values.get(metric):
            text = f"DCGM exporter: {words} on {name} ({metric} {gpu.values[metric]})"
            found.append(replace(about, code=code, line=text))
    if watch.recoveries and (rise := risen(watch.recoveries, now, HOUR)):
        text = f"DCGM exporter: the NVLinks of {name} were recovered {rise} times within the hour"
        found.append(replace(about, code="nvlink_recovery", line=text))
    for bit, since in watch.slow_since.items():
        if now - since >= SLOW_FOR:
            code, words = _SLOWDOWNS[bit]
            text = f"DCGM exporter: {name} {words} and has been slowed down for {now - since:.0f} s"
            found.append(replace(about, code=code, line=text))
    return found
