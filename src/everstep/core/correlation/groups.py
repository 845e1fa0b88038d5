"""Which codes are sides of one event, and which of them is its cause.

From incidents that people have posted: 48, 63 and 94 within 25 ms of one memory error (open-gpu-kernel-modules 1150
and others); a GPU that fell off the bus, and 12 s later 20034 on many links; an AMD hive of which every GPU is reset
for one error; 45 on every GPU of a job when one link failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

WINDOW = 60.0  # seconds within which codes of one group are one event
DETAIL_WINDOW = 10.0  # seconds within which a detail belongs to the line before it
COMPANION_WAIT = 5.0  # seconds that a companion waits for the line that explains it
SAME_CODE_WINDOW = 10.0  # seconds within which one code on many devices of a node is one cause
SOLO_WAIT = 60.0  # seconds after which a removed channel (45) that nothing explains stands for itself
CAUSED_BY_WINDOW = 300.0  # seconds back that "caused by previous Xid N" may point


@dataclass(frozen=True, slots=True)
class Group:
    """Codes that are told together.

    Attributes:
        ranks: for each ``kind:code`` how far it is from the cause; of two the lower is the cause, of equals the first.
        wide: whether the whole node is one: a bus or a fabric that fails is seen by many devices.
    """

    name: str
    ranks: Mapping[str, int]
    wide: bool = False


def _ranks(*steps: str) -> dict[str, int]:
    return {code: rank for rank, codes in enumerate(steps) for code in codes.split()}


_SYMPTOM_XIDS = "xid:45 xid:43"
GROUPS = (
    Group("memory", _ranks("xid:95", "xid:48", "xid:171 xid:172", "xid:64", "xid:94", "xid:63 xid:156")),
    Group(
        "bus",
        _ranks(
            "xid:79 xid:167",
            "host:gpu_lost_at_boot host:gpu_fell_off",
            "host:gpu_lost",
            "pcie:hotplug_gone pcie:aer_fatal",
            "pcie:aer_recovery_failed pcie:aer_nonfatal",
            "host:gpu_lost_assert sxid:20034",
        ),
        wide=True,
    ),
    Group(
        "firmware",
        _ranks(
            "xid:119 xid:120",
            "xid:62",
            "host:gsp_rate_limit",
            "xid:109",
            "xid:8",
            "host:gsp_heartbeat host:pmu_halted host:rc_watchdog host:gpu_reset_required",
        ),
    ),
    Group(
        "nvlink",
        _ranks(
            "xid:74 xid:144 xid:145 xid:146 xid:147 xid:148 xid:149 xid:150 xid:155 sxid:*",
            "sxid:20034",
            "host:nvlink_rx_detect host:imex_session",
        ),
        wide=True,
    ),
    Group(
        "amd",
        _ranks(
            "amd:device_lost amd:pci_error",
            "amd:ras_uncorrectable_event",
            "amd:ras_uncorrectable",
            "amd:vm_page_fault",
            "amd:ring_timeout",
            "amd:no_answer",
            "amd:gpu_reset_failed amd:ring_reset_failed",
            "amd:gpu_reset_begun amd:gpu_reset_succeeded amd:aca_record amd:process_detail",
        ),
        wide=True,
    ),
    Group("start", _ranks("host:gpu_init_failed", "host:gpu_wpr2_up"), wide=True),
    Group(
        "disk",
        _ranks(
            "host:nvme_removed host:disk_failure host:disk_path_lost",
            "host:nvme_down",
            "host:nvme_timeout",
            "host:block_io_error",
            "host:readonly_remount host:xfs_shutdown",
            "host:ext4_error",
        ),
        wide=True,
    ),
    Group(
        "machine",
        _ranks(
            "host:cper_severity host:edac_uncorrected",
            "host:machine_check",
            "host:edac_corrected host:cmci_storm host:ghes_record",
        ),
        wide=True,
    ),
    Group(
        "adapter",
        _ranks(
            "ib:command_timeout ib:health_syndrome",
            "ib:health_compromised ib:napi_lockup",
            "ib:recovery_aborted",
            "ib:high_temperature ib:module_error",
            "ib:transmit_timeout",
            "ib:link_down",
            "ib:carrier_lost",
        ),
        wide=True,
    ),
)
SYMPTOMS = frozenset(_SYMPTOM_XIDS.split())  # of whatever else befell the device
# What ends which: seeing the first closes cases of the others on the same device.
ENDED_BY: Mapping[str, frozenset[str]] = {
    "ib:link_up": frozenset(("ib:link_down", "ib:carrier_lost", "ib:carrier_lost_other")),
    "host:file_server_back": frozenset(("host:file_server_lost",)),
    "amd:gpu_reset_succeeded": frozenset(
        ("amd:ring_timeout", "amd:ring_reset_failed", "amd:vm_page_fault", "amd:no_answer")
    ),
}


_PAIRS = 4096  # answers remembered; a storm asks the same ones again and again


@lru_cache(_PAIRS)
def group_of(code: str) -> Group | None:
    """The group that ``kind:code`` is told in; None when it stands alone. Any SXid is one of the NVLink fabric."""
    for group in GROUPS:
        if code in group.ranks:
            return group
    if code.startswith("sxid:"):
        return next(group for group in GROUPS if group.name == "nvlink")
    return None


def in_group(group: Group, code: str) -> bool:
    """Whether ``kind:code`` may be told in ``group``; a few codes go with more than one."""
    return code in group.ranks or (code.startswith("sxid:") and "sxid:*" in group.ranks)


@lru_cache(_PAIRS)
def shared_group(one: str, other: str) -> Group | None:
    """The group in which two codes are told together, first that of ``one``; None when they are not."""
    for group in (group_of(one), group_of(other)):
        if group is not None and in_group(group, one) and in_group(group, other):
            return group
    return None


def rank(group: Group, code: str) -> int:
    """How far a code of the group is from the cause."""
    return group.ranks.get(code, group.ranks.get("sxid:*", 0) if code.startswith("sxid:") else len(group.ranks))
