"""What DCGM's exporter shows of each GPU, read from the Prometheus text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

# Names as in dcgm-exporter's default-counters.csv and DCGM's dcgm_fields.h.
XID = "DCGM_FI_DEV_XID_ERRORS"
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
REMAP_PENDING = "DCGM_FI_DEV_ROW_REMAP_PENDING"
REMAP_FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
ECC_DOUBLE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"  # since the driver was loaded; the aggregate never falls
NVLINK_RECOVERY = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
CLOCK_REASONS = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
_WANTED = {
    name.encode(): name
    for name in (XID, XID_COUNT, REMAP_PENDING, REMAP_FAILURE, ECC_DOUBLE, NVLINK_RECOVERY, *CLOCK_REASONS)
}
PREFIX = b"DCGM_"
_BLANK = 0x7FFFFFF0  # DCGM_INT32_BLANK: this and above say "not supported", "no permission" and the like
_LINE_LIMIT = 8192
_HEAD = re.compile(rb"([A-Z0-9_]{1,80})(?:\{(.*)\})?[ \t]+(\S{1,40})(?:[ \t]+-?\d{1,20})?[ \t]*\r?")
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_]\w{0,63})[ \t]*=[ \t]*"((?:[^"\\]|\\.){0,512})"[ \t]*,?')
_LABELS = frozenset((b"gpu", b"UUID", b"pci_bus_id", b"xid"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the exporter's answer."""

    name: str
    labels: dict[str, str]
    value: int


@dataclass(slots=True)
class GpuMetrics:
    """All that one answer says of one GPU. Of several values (one for each MIG instance) the largest counts.

    Attributes:
        values: by the metric's name; what the exporter does not know is absent.
        xids: XIDs that the exporter counted within its own window (5 minutes unless it is told otherwise).
    """

    index: str
    uuid: str = ""
    pci: str | None = None
    values: dict[str, int] = field(default_factory=dict)
    xids: set[str] = field(default_factory=set)


def parse_sample(line: bytes) -> Sample | None:
    """One line; None for one that is no sample of a metric that matters, or has no value. Never raises."""
    name = _WANTED.get(re.split(rb"[{ \t]", line, maxsplit=1)[0]) if line.startswith(PREFIX) else None
    if name is None or len(line) > _LINE_LIMIT:
        return None
    head = _HEAD.fullmatch(line)
    if head is None:
        return None
    try:
        value = float(head[3])
    except ValueError:
        return None
    if not math.isfinite(value) or not 0 <= value < _BLANK:
        return None
    labels = {
        label[1].decode(): label[2].decode(errors="replace")
        for label in _LABEL.finditer(head[2] or b"")
        if label[1] in _LABELS
    }
    return Sample(name, labels, int(value))


def by_gpu(samples: Iterable[Sample]) -> dict[str, GpuMetrics]:
    """The samples, gathered by GPU: by its UUID, or its number where the exporter gives none."""
    gpus: dict[str, GpuMetrics] = {}
    for sample in samples:
        uuid, index = sample.labels.get("UUID", ""), sample.labels.get("gpu", "")
        if not (uuid or index):
            continue
        gpu = gpus.setdefault(uuid or index, GpuMetrics(index, uuid))
        gpu.pci = sample.labels.get("pci_bus_id") or gpu.pci
        if sample.name == XID_COUNT:
            if sample.value and sample.labels.get("xid", "").isdigit():
                gpu.xids.add(sample.labels["xid"])
        else:
            gpu.values[sample.name] = max(sample.value, gpu.values.get(sample.name, 0))
    return gpus
