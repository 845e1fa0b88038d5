"""The host itself: machine checks, memory, disks, file systems, file servers, lockups, and memory that ran out."""

from __future__ import annotations

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.rules import first_match, rule

MARKERS = (
    b"ardware Error]", b"achine Check", b"EDAC MC", b"CMCI", b"EXT4-fs", b"XFS (", b"nvme", b"I/O error",
    b"medium error", b"lockup", b"LOCKUP", b"blocked for more", b"ut of memory", b"oom-kill:", b"Kernel panic",
    b"libnccl", b"no available path", b"Disk failure", b"file-max", b"fork rejected", b"nfs: server", b"Lustre",
)  # fmt: skip

_MCE = rb"(?:mce: )?(?:\{\d{1,10}\})?\[Hardware Error\]: "
_TASK = rb"(?P<process>.{1,32}):(?P<pid>\d{1,10})"  # greedy: a name may hold colons, as in kworker/3:1
_NVME = rb"nvme (?P<subject>nvme\d{1,4}): "
_SERVER = rb"(?P<subject>[\w.:\[\]-]{1,255})"
_KILLED = rb"Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<process>.{1,32}?)\)(?= |,|$)"
_DEV = rb"(?P<subject>[\w/-]{1,40})"
RULES = (
    rule("cper_severity", b"event severity", _MCE + rb"event severity: (?:corrected|recoverable|fatal|info)\b"),
    rule(
        "ghes_record",
        b"APEI Generic Hardware Error",
        _MCE + rb"Hardware error from APEI Generic Hardware Error Source",
        Part.DETAIL,
    ),
    rule(
        "machine_check",
        b"achine ",
        rb"(?:" + _MCE + rb")?(?:Machine check events logged|CPU \d{1,5}: Machine Check(?: Exception)?: )",
    ),
    rule("edac_uncorrected", b"EDAC MC", rb"EDAC MC\d{1,3}: \d{1,9} UE \w"),
    rule("edac_corrected", b"EDAC MC", rb"EDAC MC\d{1,3}: \d{1,9} CE \w"),
    rule("cmci_storm", b"CMCI storm detected", rb"(?:mce: )?CMCI storm detected: switching to poll mode"),
    rule(
        "readonly_remount",
        b"emounting filesystem read-only",
        rb"(?:EXT[234]-fs|BTRFS|F2FS-fs) ?\(?" + _DEV + rb"\)?:? Remounting filesystem read-only",
    ),
    rule("ext4_error", b"EXT4-fs error", rb"EXT4-fs error \(device " + _DEV + rb"\)"),
    rule(
        "xfs_shutdown",
        b"hutting down filesystem",
        rb"XFS \(" + _DEV + rb"\): (?!User initiated).{0,120}Shutting down filesystem",
    ),
    rule(
        "nvme_removed",
        b"nvme",
        _NVME + rb"(?:Disabling device after reset|Removing after probe) failure",
    ),
    rule("nvme_down", b"controller is down", _NVME + rb"controller is down; will reset"),
    rule("nvme_timeout", b" timeout, ", _NVME + rb"I/O .{1,80} timeout, "),
    rule("disk_path_lost", b"no available path", rb"block (?P<subject>nvme\w{1,20}): no available path - failing I/O"),
    rule("disk_failure", b"Disk failure on", rb"md/raid\w*:(?P<array>\w{1,20}): Disk failure on " + _DEV),
    rule(
        "block_io_error",
        b"rror",
        rb"(?:blk_update_request: )?(?:I/O error|critical (?:medium|target|space allocation) error), dev " + _DEV,
    ),
    rule("block_io_error", b"Buffer I/O error", rb"Buffer I/O error on dev(?:ice)? " + _DEV),
    rule("block_io_error", b"log I/O error", rb"XFS \(" + _DEV + rb"\): log I/O error"),
    rule(
        "block_io_error",
        b"I/O Error (sct",
        rb"(?P<subject>nvme\w{1,20}): I/O Cmd\(0x[0-9a-f]+\) @ LBA "
        rb"\d+, .{1,40}I/O Error \(sct",
    ),
    rule("oom_cgroup", b"emory cgroup out of memory", rb"Memory cgroup out of memory: " + _KILLED),
    rule("oom", b"Out of memory", rb"Out of memory(?: \(oom_kill_allocating_task\))?: " + _KILLED),
    rule("oom_detail", b"oom-kill:", rb"oom-kill:constraint=\w{1,40},", Part.DETAIL),
    rule(
        "soft_lockup",
        b"soft lockup",
        rb"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#\d{1,5} stuck for \d{1,10}s!"
        rb"(?: \[" + _TASK + rb"\])?",
    ),
    rule("hard_lockup", b"hard LOCKUP", rb"(?:NMI )?[Ww]atchdog: ?(?:Watchdog )?detected hard LOCKUP on cpu \d{1,5}"),
    rule("hung_task", b"blocked for more than", rb"INFO: task " + _TASK + rb" blocked for more than \d{1,6} seconds"),
    rule("kernel_panic", b"Kernel panic", rb"Kernel panic - not syncing"),
    rule(
        "nccl_segfault",
        b"libnccl",
        rb"(?P<process>.{1,15})\[(?P<pid>\d{1,10})\]: segfault at "
        rb".{1,120} in libnccl\.so",
    ),
    rule("process_limit", b"file-max limit", rb"VFS: file-max limit \d+ reached"),
    rule("process_limit", b"fork rejected by pids", rb"cgroup: fork rejected by pids controller in "),
    rule("file_server_lost", b"nfs: server", rb"nfs: server " + _SERVER + rb" (?:is )?not responding"),
    rule("file_server_back", b"nfs: server", rb"nfs: server " + _SERVER + rb" OK\b"),
    rule(
        "file_server_lost",
        b"Lustre",
        rb"(?:Lustre|LustreError): (?:\d+:\d+:\([\w.]+:\d+:\w+\(\)\) )?[\w-]{1,80}: Connection to "
        rb"(?P<subject>[\w.-]{1,80}) \(at [\w.@:-]{1,80}\) was lost",
    ),
    rule("file_server_back", b"Lustre", rb"Lustre: [\w-]{1,80}: Connection restored to (?P<subject>[\w.-]{1,80})"),
)


def parse(line: bytes, start: int) -> Evidence | None:
    """What the kernel's message at ``start`` says of the host, or None."""
    return first_match("host", RULES, line, start)
