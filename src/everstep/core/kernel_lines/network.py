"""InfiniBand and Ethernet adapters: mlx5, EFA, bnxt, the kernel's transmit watchdog, and a lost carrier.

The process id that mlx5 prints is the kernel context that noticed, never the job's, so it is not reported. Patterns
after drivers/net/ethernet/mellanox/mlx5 and drivers/infiniband/hw/efa of the Linux kernel, and posted logs.
"""

from __future__ import annotations

import re

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefixes import PCI, networkd_start
from everstep.core.kernel_lines.rules import first_match, rule

MARKERS = (b"mlx5", b"NETDEV WATCHDOG", b"efa ", b"infiniband", b"bnxt_en", b"carrier")

_MLX5 = rb"mlx5_core(?: " + PCI + rb")?:? "
_FUNCTION = rb"(?:INFO: )?(?:\w{1,60}:\d{1,5}:? ?(?:\(pid \d{1,10}\): ?)?)?"
# Of what the driver prints with or without its device: the message may also begin with a function of the driver's.
_HEAD = rb"(?:" + _MLX5 + _FUNCTION + rb"|(?=mlx5)" + _FUNCTION + rb")?"
_PORT = rb"(?P<subject>(?!Port\b)[\w.@-]{1,32})"
_EFA = rb"(?:efa " + PCI + rb"(?: (?P<subject>\w{1,32}))?|infiniband (?P<subject2>\w{1,32})): "
RULES = (
    rule(
        "command_timeout",
        b"timeout. Will cause a leak",
        _MLX5 + _FUNCTION + rb"\w{1,60}\(0x[0-9a-f]+\) timeout\. Will cause a leak",
    ),
    rule("health_compromised", b"health compromised", _MLX5 + _FUNCTION + rb"device's health compromised"),
    rule("health_syndrome", b"synd 0x", _MLX5 + _FUNCTION + rb"synd 0x[0-9a-f]+: "),
    rule("high_temperature", b"High temperature on sensors", _MLX5 + _FUNCTION + rb"High temperature on sensors"),
    rule(
        "recovery_aborted",
        b"health recovery flow aborted",
        _HEAD + rb"health recovery flow aborted",
    ),
    rule(
        "probe_failed",
        b"failed with error",
        rb"(?:mlx5_core: probe of "
        + PCI
        + rb" failed with error -\d+|mlx5_core (?P<pci2>[0-9a-f:.]{7,16}): "
        + _FUNCTION
        + rb"(?:mlx5_load_one|probe_one).{0,20} failed with error(?: code)? -\d+)",
    ),
    rule(
        "link_down",
        b"ink ",
        rb"mlx5_core " + PCI + rb"(?: " + _PORT + rb")?:? (?:Port: \d{1,3} )?Link (?:down|DOWN)\b",
    ),
    rule(
        "link_up",
        b"ink ",
        rb"mlx5_core " + PCI + rb"(?: " + _PORT + rb")?:? (?:Port: \d{1,3} )?Link (?:up|ACTIVE|INIT|ARMED)\b",
    ),
    rule(
        "module_error",
        b"odule event[error]",
        _HEAD + rb"Port module event\[error\]: (?P<subject>module \d{1,3}), ",
    ),
    rule(
        "module_unplugged",
        b"Cable unplugged",
        _HEAD + rb"Port module event: (?P<subject>module \d{1,3}), Cable unplugged",
    ),
    rule(
        "slot_power",
        b"insufficient power on the PCIe slot",
        _HEAD + rb"Detected insufficient power on the PCIe slot",
        Part.COMPANION,
    ),
    rule(
        "access_register",
        b"ACCESS_REG(",
        _HEAD + rb"ACCESS_REG\(0x[0-9a-f]+\) op_mod\(0x[0-9a-f]+\) failed",
        Part.COMPANION,
    ),
    rule(
        "transmit_timeout",
        b"timed out",
        rb"(?:NETDEV WATCHDOG: (?P<subject>[\w.@-]{1,16}) \(mlx5_core\w*\): transmit queue \d{1,5} timed out"
        rb"|mlx5_core "
        + PCI
        + rb" (?P<subject2>[\w.@-]{1,16}): NETDEV WATCHDOG: (?:CPU: \d{1,5}: )?transmit queue \d{1,5} "
        rb"timed out)",
    ),
    rule(
        "transmit_timeout",
        b"X timeout",
        rb"mlx5_core " + PCI + rb" (?P<subject>[\w.@-]{1,16}): (?:TX timeout detected|RX timeout on channel)",
    ),
    rule(
        "efa_timeout",
        b"ompletion",
        _EFA + rb"(?:Wait for completion \(polling\) timeout|The device didn't send any completion for admin cmd|"
        rb"The device sent a completion but the driver didn't receive)",
    ),
    rule("efa_not_ready", b"Device isn't ready", rb"efa " + PCI + rb": Device isn't ready, abort com init"),
    rule("efa_command_failed", b"command", _EFA + rb"Failed to (?:submit|process) command \w{1,40} \(opcode \d{1,5}\)"),
    rule(
        "bnxt_command",
        b"QPLIB: cmdq",
        rb"bnxt_en " + PCI + rb": QPLIB: cmdq\[0x[0-9a-f]+\]=0x[0-9a-f]+ status 0x[1-9a-f]",
    ),
    rule("bnxt_command", b"Failed to allocate HW", rb"infiniband (?P<subject>bnxt_re\d{1,3}): Failed to allocate HW"),
)
_CARRIER = re.compile(rb"(?P<subject>[\w.@-]{1,16}): (?P<what>[Ll]ost|[Gg]ained) carrier")
_FABRIC_PORTS = ("ib", "rdma", "roce")


def parse(line: bytes, start: int) -> Evidence | None:
    """What the adapter's message at ``start`` says, or None."""
    return first_match("ib", RULES, line, start) or (_carrier(line) if b"arrier" in line else None)


def _carrier(line: bytes) -> Evidence | None:
    """A carrier that systemd-networkd saw come or go; only ports of a fabric are told apart by their name."""
    start = networkd_start(line)
    match = None if start is None else _CARRIER.match(line, start)
    if match is None:
        return None
    subject = match["subject"].decode("ascii", "replace")
    if match["what"].lower() == b"gained":
        code = "link_up"
    else:
        code = "carrier_lost" if subject.startswith(_FABRIC_PORTS) else "carrier_lost_other"
    return Evidence(kind="ib", code=code, subject=subject)
