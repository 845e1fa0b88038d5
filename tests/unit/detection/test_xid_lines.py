"""XID lines: every prefix, every form of address and process, look-alikes, and anything at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.health import LINE_LIMIT, NAME_LIMIT
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.plain_text import plain

PAYLOAD = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."

PREFIXES = [
    "",
    "   ",
    "<4>",
    "[12345.678901] ",
    "[    4.123456] [ T1946] ",
    "[  +0.000844] ",
    "[Mon Jan  1 12:00:00 2024] ",
    "kern  :warn  : 2025-01-21T04:41:44,283390+00:00 ",
    "Mar 27 17:40:36 kernel: ",
    "Nov 22 18:29:55 gpu-node-7.example.com kernel: [ 966.503025] ",
    "Okt 06 17:59:27 host kernel: ",
    "jan.  5 17:59:27 host kernel: ",
    "2026-02-14T05:03:41.123456+00:00 gpu-node-7 kernel: [  966.503025] ",
    "2026-09-08T01:00:00+0000 n1 kernel: ",
    "2024-01-15T03:00:00,000000+00:00 ",
    "[2026-07-15T04:18:55.513286+00:00] ",
    "10.0.0.5: kern: warning: [2026-04-22T21:25:20.458998481Z]: ",
    "kernel: ",
    "Mar 27 17:40:36 host kernel: message repeated 9 times: [",
    "4,4471,3023054882,-;",
    "3,4471,3023054882,c,caller=T1946;",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_logger_prefix(prefix: str) -> None:
    for line in (prefix + PAYLOAD, (prefix + PAYLOAD).encode()):
        evidence = parse_line(line)
        assert evidence is not None
        assert (evidence.code, evidence.pci, evidence.pid, evidence.process) == ("79", "0000:3b:00", 1234, "python3")


@pytest.mark.parametrize(
    ("inside", "pci"),
    [
        ("PCI:0000:3b:00", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("PCI:0000:3b:00.0", "0000:3b:00.0"),
        ("PCI:0019:01:1f", "0019:01:1f"),
        ("PCI:000b:00:00 GPU-I:05 GPU-CI:02", "000b:00:00"),
        ("PCI:000b:00:00 GPU-I:05", "000b:00:00"),
        ("PCI:10000:3b:00", "10000:3b:00"),
    ],
)
def test_every_form_of_a_pci_address(inside: str, pci: str) -> None:
    evidence = parse_line(f"NVRM: Xid ({inside}): 13, pid=9, name=a, Graphics Exception")
    assert evidence is not None
    assert evidence.pci == pci


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("name=python3, Ch 00000008, intr 0", "python3"),
        ("name=ray::WorkerDict, RLW_RXPIPE Nonfatal", "ray::WorkerDict"),
        ("name=nvc:[driver], Timeout after 6s", "nvc:[driver]"),
        ("name=my job, Ch 00000008", "my job"),
        ("name=a, b, Ch 00000008", "a, b"),
        ("name=sh, Ch 00000008, intr 00000000", "sh"),
        ("name=x,y, channel 0x00000002", "x,y"),
        ("name='<unknown>', GPU has fallen", None),
        ("name=<unknown>, Ch 00000008", None),
        ("name=test", "test"),
        ("name=Stray-Win64-Shi, Ch 00000026, errorString CTX", "Stray-Win64-Shi"),
    ],
)
def test_process_names(printed: str, name: str | None) -> None:
    evidence = parse_line(f"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, {printed}")
    assert evidence is not None
    assert (evidence.pid, evidence.process) == (7, name)


@pytest.mark.parametrize(
    "line",
    [
        # people and programs that talk about XIDs, rather than a kernel that reports one
        f"echo '{PAYLOAD}' > /dev/kmsg",
        f"Mar 27 17:40:36 host myapp[123]: {PAYLOAD}",
        f"Mar 27 17:40:36 host kernel-watcher: {PAYLOAD}",
        f'{{"msg": "{PAYLOAD}"}}',
        f"[gpu-health] {PAYLOAD}",
        f"see {PAYLOAD}",
        f"+ {PAYLOAD}",
        # lines that the driver prints, but which are no XID
        "NVRM: Xid (PCI:0000:3b:00): , pid=1",
        "NVRM: Xid (PCI:0000:3b:00): 79abc",
        "NVRM: Xid (PCI:0000:3b): 79, pid=1",
        "NVRM: Xid (PCI:zzzz:3b:00): 79, pid=1",
        "NVRM: Xid (PCI:0000:3b:00)  79, pid=1",
        "NVRM: Xid (PCI:0000:3b:00): -79, pid=1",
        "NVRM: _kgspLogXid119: GSP Timeout",
    ],
)
def test_look_alikes(line: str) -> None:
    assert parse_line(line) is None


def test_what_user_space_wrote_counts_only_when_allowed_and_stays_marked() -> None:
    injected = "12,1235,5679,-;" + PAYLOAD
    assert parse_line(injected) is None
    evidence = parse_line(injected, allow_injected=True)
    assert evidence is not None
    assert evidence.injected
    assert not getattr(parse_line("4,1235,5679,-;" + PAYLOAD, allow_injected=True), "injected", True)


def test_evidence_keeps_a_bounded_line() -> None:
    evidence = parse_line(PAYLOAD + "x" * 100_000)
    assert evidence is not None
    assert len(evidence.line) == LINE_LIMIT


def test_of_a_folded_message_the_xid_counts() -> None:
    folded = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n   NVRM: Xid (PCI:0000:b3:00.0): 79\n   NVRM: fallen off"
    )
    evidence = parse_line(folded)
    assert evidence is not None
    assert (evidence.code, evidence.pci) == ("79", "0000:b3:00.0")


_PIECES = st.sampled_from(
    [p.encode() for p in PREFIXES]
    + [b"NVRM: Xid (", b"PCI:", b"0000:3b:00", b"): ", b"79", b", pid=", b"'<unknown>'", b", name=", b",", b"\n", b"["]
    + [b"\x00", b"\xff", b"154 (", b"recovery action changed from 0x0 (None) to 0x"]
)


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    parse_line(data)
    parse_line(b"NVRM: Xid (" + data, allow_injected=True)


@given(st.text())
def test_any_text(text: str) -> None:
    parse_line(text)
    parse_line("NVRM: Xid (PCI:0000:3b:00): 79" + text, allow_injected=True)


@given(st.lists(_PIECES, max_size=12))
def test_any_order_of_the_pieces_of_a_line(pieces: list[bytes]) -> None:
    evidence = parse_line(b"".join(pieces), allow_injected=True)
    assert evidence is None or evidence.kind != "xid" or evidence.code.isdigit()


@given(
    prefix=st.sampled_from(PREFIXES),
    code=st.integers(0, 99999),
    pid=st.integers(0, 4_194_304),
    name=st.text(
        st.characters(codec="ascii", exclude_characters=",\n\r\x0b\x0c\x1c\x1d\x1e'<\\ "), min_size=1, max_size=15
    ),
)
def test_what_the_driver_prints_is_read_back(prefix: str, code: int, pid: int, name: str) -> None:
    evidence = parse_line(f"{prefix}NVRM: Xid (PCI:0000:3b:00): {code}, pid={pid}, name={name}, Ch 00000008")
    assert evidence is not None
    assert (evidence.code, evidence.pid, evidence.process) == (str(code), pid, plain(name, NAME_LIMIT))
