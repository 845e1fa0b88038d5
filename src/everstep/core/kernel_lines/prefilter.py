"""Passing over lines that say nothing, by their bytes alone.

Every pattern of this package is matched where the message begins. So the first four bytes of a message tell which words
it would have to hold to be evidence. Where a logger's prefix is not understood at a glance, the whole line is searched
for every word, which costs ten times as much and is still no regular expression.
"""

from __future__ import annotations

_AER = (b"AER: ", b"PCIe ")
# For the first four bytes of a message: words of which it must hold one.
WORDS: dict[bytes, tuple[bytes, ...]] = {
    b"NVRM": (
        b"Xid (", b" failed!", b"fallen off", b"uvm enc", b"mismatch", b"WPR2", b"NV_ERR_", b"Rate lim", b"eartbeat",
        b"halted", b"watchdog", b"knvlink", b"Imex", b"The NVIDIA GPU",
    ),
    b"nvid": (b"Xid (", b"uvm enc", b"peermem", *_AER),
    b"uvm ": (b"uvm enc",),
    b"fall": (b"fallen off",),
    b"amdg": (
        b"hardware error", b"Hardware Error", b"bad page", b"reset", b"timeout", b"page fault", b"failed", b"Failed",
        b"SMU: I", b"Fatal error", b"PCI error", b"lost from", b"throttled", b" pid ", *_AER,
    ),
    b"ring": (b" timeout",),
    b"[drm": (b" timeout", b"failed"),
    b"mlx5": (
        b"timeout", b"timed out", b"ompromised", b"synd", b"High temp", b"recovery flow", b"failed", b"ink ",
        b"odule event", b"insufficient power", *_AER,
    ),
    b"heal": (b"recovery flow",),
    b"Port": (b"odule event",),
    b"Dete": (b"insufficient power",),
    b"ACCE": (b"ACCESS_REG(",),
    b"NETD": (b"timed out",),
    b"efa ": (b"ompletion", b"isn't ready", b"command", *_AER),
    b"infi": (b"ompletion", b"command", b"allocate HW"),
    b"bnxt": (b"QPLIB", *_AER),
    b"pcie": (b"pciehp", *_AER),
    b"pci ": _AER,
    b"ioni": _AER,
    b"mce:": (b"ardware Error]", b"CMCI"),
    b"Mach": (b"achine check",),
    b"CPU ": (b"achine Check",),
    b"EDAC": (b" UE ", b" CE "),
    b"CMCI": (b"CMCI storm",),
    b"EXT2": (b"read-only",),
    b"EXT3": (b"read-only",),
    b"EXT4": (b"read-only", b"-fs error"),
    b"BTRF": (b"read-only",),
    b"F2FS": (b"read-only",),
    b"XFS ": (b"hutting down", b"I/O error"),
    b"nvme": (b"timeout", b"is down", b" failure", b"I/O Error", *_AER),
    b"bloc": (b"no available path",),
    b"md/r": (b"Disk failure",),
    b"blk_": (b"rror, dev",),
    b"I/O ": (b"rror, dev",),
    b"crit": (b"rror, dev",),
    b"Buff": (b"I/O error",),
    b"Memo": (b"out of memory",),
    b"Out ": (b"ut of memory",),
    b"oom-": (b"oom-kill:",),
    b"NMI ": (b"lockup", b"LOCKUP"),
    b"watc": (b"lockup", b"LOCKUP"),
    b"Watc": (b"LOCKUP",),
    b"BUG:": (b"lockup",),
    b"INFO": (b"blocked for",),
    b"Kern": (b"Kernel panic",),
    b"mess": (b"message repeated",),
    b"VFS:": (b"file-max",),
    b"cgro": (b"fork rejected",),
    b"nfs:": (b"respond", b" OK"),
    b"Lust": (b"onnection",),
}  # fmt: skip
_SEGFAULT = b"libnccl"  # the one message that begins with the name of a process, so with anything
ANYWHERE = tuple(dict.fromkeys((_SEGFAULT, b"arrier", *(word for words in WORDS.values() for word in words))))
_HEAD_LIMIT = 200  # bytes within which the head of a /dev/kmsg record ends
_PLAIN_HEAD = 52  # bytes of a head without extra fields: three numbers and "-"
_DIGITS = frozenset(b"%d" % digit for digit in range(10))
_PREFIXES_BEGIN = b" \t<[{0123456789"  # where a message begins like this, it may be another prefix
WORDS[b"kern"] = ANYWHERE  # the prefix of dmesg -x and of Talos


def may_be_fault(line: bytes) -> bool:
    """False when no pattern can match a record or a message of one or several lines. True says nothing yet."""
    words = WORDS.get(line[:4])
    if words is None:
        start = line.find(b",-;", 0, _PLAIN_HEAD) + 3 if line[:1] in _DIGITS else 2
        if start == 2:
            start = _message_start(line)
            # A second "kernel:" is a log that was sent on by another logger.
            if start == 0 or line.find(b"kernel:", start) >= 0 or b"\n" in line:
                return any(word in line for word in ANYWHERE)
        head = line[start : start + 4]
        words = WORDS.get(head)
        if words is None:
            if head[:1] in _PREFIXES_BEGIN:
                return any(word in line for word in ANYWHERE)
            return _SEGFAULT in line
    for word in words:  # a generator would cost as much as the searches
        if word in line:
            return True
    return _SEGFAULT in line or (b"\n" in line and any(word in line for word in ANYWHERE))


def _message_start(line: bytes) -> int:
    """Where the message begins in the commonest forms of a line; 0 where that is not plain."""
    if line[:1] in _DIGITS and (start := line.find(b";", 0, _HEAD_LIMIT) + 1) and b" " not in line[:start]:
        return start
    dated = line[:1] == b"[" and (start := line.find(b"] ") + 2) > 1
    if dated and (line[start : start + 4] in WORDS or b"kernel:" not in line):
        return start
    end = line.find(b" kernel: ")
    return end + 9 if end > 0 and _is_prefix(line, end) else 0


def _is_prefix(line: bytes, end: int) -> bool:
    """Whether what stands before ``kernel:`` is a logger's prefix, and not a message that quotes that word.

    A message may hold any word: process names in it are a user's choice. Behind a letter a prefix ends in ``kernel:``
    or there is none, and then the line's own first bytes decide, which the caller has looked at. Behind an ISO date
    it need not, so nothing but the name of a host may stand between.
    """
    if line[:1].isalpha():
        return line.find(b"networkd[", 0, end) < 0  # the one daemon that is quoted, by its own prefix
    host = line.rfind(b" ", 0, end)
    return line[4:5] == b"-" and line.count(b" ", 0, host) == (line[10:11] == b" ")
