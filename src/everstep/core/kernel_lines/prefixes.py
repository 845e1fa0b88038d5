"""What loggers put before a kernel message, and where the message itself begins.

Every family's pattern is matched at that place only. So a line that merely talks about a fault (a script, a log
shipper's JSON, a monitor's own report read back) does not match: nothing but a logger's own prefix may stand before.
"""

from __future__ import annotations

import re

PCI = rb"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ISO = rb"\d{4}-\d\d-\d\d[T_ ]" + _CLOCK + rb"(?:Z|[+-]\d\d:?\d\d)?"
_MONTH_DAY = rb"[^\W\d_]{3,5}\.?[ ]{1,2}\d{1,2}"  # "Mar 27", "Okt 06", "jan.  5"
_DATED = rb"(?:" + _MONTH_DAY + rb"[ ]" + _CLOCK + rb"|" + _ISO + rb")"
_HOST = rb"[\w.-]{1,255}"
_PREFIXES = (
    rb"<\d{1,3}>",  # syslog priority
    rb"\[[ ]*\+?\d{1,12}(?:\.\d{1,9})?\]",  # seconds since boot; dmesg -d
    rb"\[[ ]*[TC]\d{1,10}\]",  # CONFIG_PRINTK_CALLER
    rb"\[(?:\w{3} )?" + _MONTH_DAY + rb"[ ]" + _CLOCK + rb"(?: \d{4})?\]",  # dmesg -T
    rb"\[" + _ISO + rb"\]:?",
    rb"(?:\d{1,3}\.){3}\d{1,3}: kern: \w+:",  # Talos
    rb"kern[ ]{0,4}:\w{4,6}[ ]{0,4}:",  # dmesg -x
    _DATED + rb"(?: " + _HOST + rb")? kernel:",  # syslog, journalctl
    _ISO,
    rb"(?:" + _HOST + rb" )?kernel:",
    rb"message repeated (?P<times>\d{1,9}) times: \[",  # rsyslog
)
_PREFIX = re.compile(rb"\s*(?:" + rb"|".join(_PREFIXES) + rb")\s*")
_MAX_PREFIXES = 6
# The one daemon that is quoted as a witness: the kernel logs a lost carrier for some drivers only.
_NETWORKD = re.compile(rb"\s*" + _DATED + rb"(?: " + _HOST + rb")? systemd-networkd\[\d{1,10}\]: ")
_MOST_REPEATS = 1_000_000  # of one folded message; rsyslog folds far fewer, and a count is no severity


def message_start(line: bytes) -> tuple[int, int]:
    """Where the message begins after all prefixes of loggers, and how many messages the line stands for."""
    start, times = 0, 1
    for _ in range(_MAX_PREFIXES):
        prefix = _PREFIX.match(line, start)
        if prefix is None:
            break
        start = prefix.end()
        if prefix["times"]:
            times = max(1, min(int(prefix["times"]), _MOST_REPEATS))
    while line[start : start + 1] in (b" ", b"\t"):
        start += 1
    return start, times


def networkd_start(line: bytes) -> int | None:
    """Where a message of systemd-networkd begins; None when the line is not one."""
    match = _NETWORKD.match(line)
    return match.end() if match else None
