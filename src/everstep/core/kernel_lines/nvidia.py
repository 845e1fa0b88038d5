"""What NVIDIA's driver says of a GPU's state without an XID: initialisation that failed, a GPU that was lost.

Most of these lines are companions: they come with an XID or with a failed initialisation, and count only when nothing
else explains them. Patterns after the open driver's source (NVIDIA/open-gpu-kernel-modules) and posted logs.
"""

from __future__ import annotations

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefixes import PCI
from everstep.core.kernel_lines.rules import first_match, rule

MARKERS = (b"NVRM: ", b"uvm encountered", b"nvidia-peermem")

_GPU = rb"NVRM: (?P<subject>GPU\d{1,2})? ?"
RULES = (
    rule("gpu_init_failed", b"RmInitAdapter failed!", rb"NVRM: GPU " + PCI + rb": RmInitAdapter failed!"),
    rule(
        "gpu_lost_at_boot",
        b"fallen off the bus and is not responding",
        rb"(?:NVRM: )?fallen off the bus and is not responding to commands",
    ),
    rule(
        "uvm_fatal",
        b"uvm encountered global fatal",
        rb"(?:NVRM: |nvidia-uvm: )?uvm encountered global fatal error 0x[0-9a-f]+, requiring os reboot to recover",
    ),
    rule("driver_mismatch", b"API mismatch", rb"NVRM: API mismatch: "),
    rule("gpu_fell_off", b"has fallen off", rb"NVRM: GPU " + PCI + rb": GPU has fallen off the bus", Part.COMPANION),
    rule(
        "gpu_wpr2_up",
        b"WPR2 already up",
        _GPU + rb"_kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        Part.COMPANION,
    ),
    rule("gpu_reset_required", b"NV_ERR_RESET_REQUIRED", rb"NVRM: .{1,300}\[NV_ERR_RESET_REQUIRED\]", Part.COMPANION),
    rule("gpu_lost_assert", b"NV_ERR_GPU_IS_LOST", rb"NVRM: .{1,300}\[NV_ERR_GPU_IS_LOST\]", Part.COMPANION),
    rule(
        "gsp_rate_limit",
        b"Rate limiting GSP RPC",
        rb"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:" + PCI,
        Part.COMPANION,
    ),
    rule(
        "gsp_heartbeat",
        b"eartbeat",
        _GPU + rb"_kgsp\w+: (?:GSP RM heartbeat timed out|.{0,80}[Hh]eartbeat timed out)",
        Part.COMPANION,
    ),
    rule(
        "pmu_halted",
        b"PMU has halted",
        _GPU + rb"\w{1,80}: Received signal from GSP that PMU has halted",
        Part.COMPANION,
    ),
    rule("rc_watchdog", b"RC watchdog", rb"NVRM: krcWatchdog\w*: RC watchdog: GPU is probably locked", Part.COMPANION),
    rule(
        "nvlink_rx_detect", b"knvlink", rb"NVRM: knvlink\w{1,80}: Failed to update Rx Detect Link mask", Part.COMPANION
    ),
    rule(
        "imex_session", b"ImexSessionApi", rb"NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi", Part.COMPANION
    ),
    rule(
        "peermem_context",
        b"nvidia-peermem",
        rb"nvidia-peermem nv_get_p2p_free_callback:\d+ ERROR detected invalid context",
        Part.COMPANION,
    ),
)


def parse(line: bytes, start: int) -> Evidence | None:
    """What the driver's message at ``start`` says, or None."""
    return first_match("host", RULES, line, start)
