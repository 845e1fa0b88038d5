"""AMD GPU lines: ``amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block``.

The second ``amdgpu:`` came with newer kernels; ``{n}`` is the number of a RAS event. A count of zero and "no
uncorrectable hardware errors" are all-clears. Patterns after drivers/gpu/drm/amd of the Linux kernel and posted logs.
"""

from __future__ import annotations

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefixes import PCI
from everstep.core.kernel_lines.rules import first_match, rule

MARKERS = (b"amdgpu",)

_HEAD = rb"amdgpu " + PCI + rb": (?:amdgpu: ?)?\s*(?:\{\d{1,10}\})?"
_WHERE = rb"(?:socket: \d+,? ?)?(?:die: \d+,? ?)?"
_DRM = rb"(?:\[drm(?::\w+ \[amdgpu\])?\] )?(?:\*ERROR\* )?"
_RING = rb"ring (?P<subject>[\w.]{1,40})"
RULES = (
    rule(
        "ras_uncorrectable_event",
        b"uncorrectable hardware error(",
        _HEAD + _WHERE + rb"uncorrectable hardware error\(\w{1,60}\) detected",
    ),
    rule(
        "ras_uncorrectable",
        b"uncorrectable hardware errors",
        _HEAD
        + _WHERE
        + rb"(?:(?P<nothing>0+)|\d{1,12}) (?:new )?uncorrectable hardware errors? detected (?:in total )?in "
        rb"(?P<subject>\w{1,40}) block",
    ),
    rule(
        "ras_correctable",
        b" correctable hardware errors",
        _HEAD
        + _WHERE
        + rb"(?:(?P<nothing>0+)|\d{1,12}) (?:new )?correctable hardware errors? detected (?:in total )?in "
        rb"(?P<subject>\w{1,40}) block",
    ),
    rule(
        "ras_deferred",
        b"deferred hardware errors",
        _HEAD + _WHERE + rb"(?:(?P<nothing>0+)|\d{1,12}) (?:new )?deferred hardware errors? detected (?:in total )?in "
        rb"(?P<subject>\w{1,40}) block",
    ),
    rule(
        "aca_record",
        b"[Hardware Error]: ",
        _HEAD + rb"\[Hardware Error\]: (?:Accelerator Check Architecture events logged|aca entry\[)",
        Part.DETAIL,
    ),
    rule(
        "bad_page_failed",
        b"bad page",
        _HEAD
        + rb"(?:failed to reserve bad page|(?:the )?(?:number of )?bad pages?.{0,60}(?:exceed|over).{0,20}threshold)",
    ),
    rule("bad_page_reserved", b"bad page", _HEAD + rb"bad page 0x[0-9a-fA-F]+ reserved"),
    rule(
        "ring_soft_recovered",
        b"but soft recovered",
        rb"(?:" + _HEAD + rb")?" + _DRM + _RING + rb" timeout, but soft recovered",
    ),
    rule("ring_timeout", b" timeout, signaled", rb"(?:" + _HEAD + rb")?" + _DRM + _RING + rb" timeout, signaled seq="),
    rule("ring_reset_failed", b" reset failed", _HEAD + rb"Ring (?P<subject>[\w.]{1,40}) reset failed"),
    rule(
        "gpu_reset_failed",
        b"eset",
        _HEAD
        + rb"(?:GPU reset(?:\(\d+\))? (?:failed|end with ret = -\d+)|(?:[Mm]ode1|[Mm]ode2|MODE[12]|ASIC) reset failed)",
    ),
    rule("gpu_reset_begun", b"eset", _HEAD + rb"(?:GPU reset begin!|(?:GPU )?(?:mode[12]|MODE[12]|BACO) reset$)"),
    rule("gpu_reset_succeeded", b"GPU reset", _HEAD + rb"GPU reset(?:\(\d+\))? succeeded"),
    rule("vm_page_fault", b"page fault (", _HEAD + rb"\[\w{1,16}(?::\w+)?\] (?:no-)?retry page fault \(src_id"),
    rule(
        "no_answer",
        b"",
        _HEAD + rb"(?:MES(?:\(\d+\))? failed to respond to msg=|Failed to send message 0x[0-9a-fA-F]+, response 0x|"
        rb"SMU: I'm not done)",
    ),
    rule(
        "init_failed",
        b"fail",
        _HEAD
        + _DRM
        + rb"(?:\w+_init of IP block <\w+> failed|ring \S{1,40} test failed \(-\d+\)|Failed to .{0,40}GPU init)",
    ),
    rule("init_failed", b"Fatal error during GPU init", _HEAD + rb"Fatal error during GPU init"),
    rule("pci_error", b"PCI error: detected", _HEAD + rb"PCI error: detected callback, state\([12]\)"),
    rule("device_lost", b"device lost from bus", _HEAD + rb"device lost from bus"),
    rule("throttled", b"throttled", _HEAD + rb".{0,40}GPU is throttled"),
    rule(
        "process_detail",
        b" pid ",
        _HEAD + rb"\s*(?:for process|[Pp]rocess) (?P<process>.{1,15}?) pid (?P<pid>\d{1,10})(?= thread|\)|$)",
        Part.DETAIL,
    ),
)


def parse(line: bytes, start: int) -> Evidence | None:
    """What the amdgpu message at ``start`` says, or None."""
    return first_match("amd", RULES, line, start)
