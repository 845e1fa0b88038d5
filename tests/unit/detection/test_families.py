"""Every row of the catalogue has a line that is read as it, and its look-alikes are not."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.fault_catalog import Entry, Seen
from everstep.core.faults import judge, variants_of
from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.folding import NOTHING, follow, read_message
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.kernel_lines.prefilter import may_be_fault
from everstep.core.kernel_lines.text import read_text

from .test_xid_lines import PREFIXES

CATALOG = shipped_catalog()
ROWS = list(CATALOG.entries.values())
SPOKEN = [row for row in ROWS if row.seen in (Seen.LINE, Seen.COMPANION)]


def spoken(row: Entry) -> str:
    """A line as the driver would print it for the row."""
    if row.example:
        return row.example
    if row.kind == "sxid":
        verdict = {"fatal": "Fatal, ", "non-fatal": "Non-fatal, "}.get(row.variant, "")
        code = "99999" if row.code == "*" else f"{int(row.code):05d}"
        return f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {code}, {verdict}Link 28 {row.meaning}"
    return f"NVRM: Xid (PCI:0000:3b:00): {row.code}, pid=1234, name=python3, {xid_text(row)}"


def registers(first: int, *others: int) -> str:
    words = (first, *others, *[0] * (6 - len(others)))
    return f"NVLink: fatal error detected on link 14({', '.join(map(hex, words))})"


def xid_text(row: Entry) -> str:
    if row.code == "154":
        target = row.variant[3:] or "0x9"
        return (
            "(" if row.variant == "to-unknown" else f"GPU recovery action changed from 0x0 (None) to {target} (Words)"
        )
    if "/" in row.variant:
        unit, _, number = row.variant.partition("/")
        if unit == "netir_link_evt":
            return f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 ({int(number) << 20 | 0x5C6:#010x} 0x00000000)"
        word = "Fatal" if row.severity == "critical" else "Nonfatal"
        return f"{unit.upper()} {word} XC0 i0 Link 09 (0x00000082 {int(number, 16):#010x} 0x00000000)"
    return {
        "parity": registers(1 << 4),
        "link-hardware": registers(1 << 16 | 1),
        "signal": registers(1 << 21),
        "sympathetic": registers(1 << 20 | 1),
        "ignore": registers(1 << 30),
        "fatal": "UNIT Fatal XC0 i0 Link 01",
        "nonfatal": "UNIT Nonfatal XC0 i0 Link 01",
        "reset-required": "Contained: SM (0x1). RST: Yes, D-RST: No",
        "caused-by-previous": "Ch 00000002 caused by previous Xid 145",
    }.get(row.variant, row.mnemonic)


@pytest.mark.parametrize("row", SPOKEN, ids=lambda row: f"{row.kind}-{row.code}-{row.variant}")
def test_a_line_of_every_row(row: Entry) -> None:
    line = spoken(row)
    evidence = parse_line(line, companions=True)
    assert evidence is not None
    assert evidence.kind == row.kind
    assert judge(CATALOG, evidence) == row
    assert (evidence.part is Part.COMPANION) == (row.seen is Seen.COMPANION)
    if row.seen is Seen.COMPANION:
        assert parse_line(line) is None


@pytest.mark.parametrize(
    "row", [row for row in SPOKEN if "systemd" not in row.example], ids=lambda row: f"{row.kind}-{row.code}"
)
def test_behind_every_prefix(row: Entry) -> None:
    plain = parse_line(spoken(row), companions=True)
    assert plain is not None
    for prefix in PREFIXES:
        for line in (prefix + spoken(row), (prefix + spoken(row)).encode()):
            found = parse_line(line, companions=True)
            assert found is not None, prefix
            assert (found.kind, found.code, found.pci, found.pid, found.process, found.subject, found.part) == (
                (plain.kind, plain.code, plain.pci, plain.pid, plain.process, plain.subject, plain.part)
            )
            assert found.count == (9 if "repeated 9 times" in prefix else 1)


@pytest.mark.parametrize("row", SPOKEN, ids=lambda row: f"{row.kind}-{row.code}-{row.variant}")
def test_who_only_talks_about_it_is_not_believed(row: Entry) -> None:
    """A family's words inside another text: reported speech in every wrapping that reaches a kernel log."""
    line = row.example.rpartition("]: ")[2] if "systemd" in row.example else spoken(row)
    for wrapped in (
        f"echo '{line}' > /dev/kmsg",
        f"Mar 27 17:40:36 host myapp[123]: {line}",
        f"Mar 27 17:40:36 host kernel-watcher: {line}",
        f'{{"msg": "{line}"}}',
        f"[gpu-health] {line}",
        f"audit: type=1400 msg='{line}'",
        f"see {line}",
        f"4,1,1,-;python3[7]: {line}",
        f"12,1,1,-;{line}",
    ):
        assert parse_line(wrapped, companions=True) is None, wrapped


@pytest.mark.parametrize("row", SPOKEN, ids=lambda row: f"{row.kind}-{row.code}-{row.variant}")
def test_a_line_that_is_cut_anywhere_is_never_another_fault(row: Entry) -> None:
    line = spoken(row)
    whole = parse_line(line, companions=True)
    assert whole is not None
    for end in range(len(line)):
        part = parse_line(line[:end], companions=True)
        same_kind = part is None or part.kind == whole.kind
        assert same_kind
        if part is not None and not part.code.isdigit():
            assert part.code == whole.code, line[:end]


def test_the_state_rows_have_no_line() -> None:
    assert all(not row.example for row in ROWS if row.seen is Seen.STATE)


@pytest.mark.parametrize(
    "line",
    [
        "amdgpu 0000:c3:00.0: amdgpu: 0 new uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: socket: 1, die: 0, 0 correctable hardware errors detected in total in gfx block",
        "amdgpu 0000:c3:00.0: amdgpu: no correctable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: Using MODE1 reset for gpu",
        "amdgpu 0000:c3:00.0: amdgpu: ring comp_1.0.0 uses VM inv eng 1 on hub 0",
        "snd_hda_intel 0000:00:1f.3: AER: can't recover (no error_detected callback)",
        "pcieport 0000:00:03.0: AER: enabled with IRQ 124",
        "pcieport 0000:00:03.0: pciehp: Slot(12): Link Up",
        "pcieport 0000:00:03.0: pciehp: Slot(12): Card present",
        "mlx5_core 0000:41:00.0: firmware version: 28.39.1002",
        "mlx5_core 0000:41:00.0 eth0: Link speed 400000",
        "e1000e 0000:00:1f.6 eno1: NIC Link is Down",
        "nvme nvme0: 32/0/0 default/read/poll queues",
        "nvme nvme0: Shutdown timeout set to 10 seconds",
        "EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "XFS (dm-4): User initiated shutdown received. Shutting down filesystem",
        "XFS (dm-4): Mounting V5 Filesystem",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0",
        "mce: CPU supports 22 MCE banks",
        "watchdog: Disabling watchdog on nohz_full cores by default",
        "python3[77]: segfault at 0 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libc.so.6[7f7c7ac00000+d3d3000]",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): , Fatal",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 240x7, Fatal",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "NVRM: GPU 0000:a1:00.0: RmInitAdapter succeeded",
        "infiniband mlx5_0: ib_query_port failed (-19)",
        "efa 0000:00:06.0: Setup irq:170 name:efa-mgmnt@pci:0000:00:06.0",
        "Feb 14 05:03:41 host systemd-networkd[5398]: ib6: Link UP",
        "Feb 14 05:03:41 host networkd-helper[5398]: ib6: lost carrier",
        "nfs: server 10.0.0.9 is fine",
    ],
)
def test_what_a_healthy_node_prints(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("line", "code", "subject"),
    [
        ("nvme nvme4: I/O tag 22 (2016) opcode 0x2 QID 0 timeout, aborting", "nvme_timeout", "nvme4"),
        ("I/O error, dev nvme0n1, sector 8 op 0x0:(READ) flags 0x0", "block_io_error", "nvme0n1"),
        ("Buffer I/O error on dev dm-3, logical block 0, async page read", "block_io_error", "dm-3"),
        ("XFS (nvme1n1): log I/O error -5", "block_io_error", "nvme1n1"),
        ("nfs: server fs-1.example.com not responding, timed out", "file_server_lost", "fs-1.example.com"),
        (
            "Lustre: 4121:0:(client.c:2295:ptlrpc_expire_one_request()) scratch-OST0001-osc-ffff9: Connection to "
            "scratch-OST0001 (at 10.0.0.2@tcp) was lost; in progress operations using this service will wait",
            "file_server_lost",
            "scratch-OST0001",
        ),
        (
            "mlx5_core 0000:41:00.0 ib3: NETDEV WATCHDOG: CPU: 9: transmit queue 4 timed out 5120 ms",
            "transmit_timeout",
            "ib3",
        ),
        ("pcieport 0000:00:03.0: pciehp: Slot(12-1): Card not present", "hotplug_gone", "Slot(12-1)"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:181]", "soft_lockup", None),
    ],
)
def test_what_a_line_is_about(line: str, code: str, subject: str | None) -> None:
    evidence = parse_line(line)
    assert evidence is not None
    assert (evidence.code, evidence.subject) == (code, subject)


def test_the_name_of_a_process_may_hold_colons() -> None:
    evidence = parse_line("INFO: task kworker/u64:3:181 blocked for more than 120 seconds.")
    assert evidence is not None
    assert (evidence.process, evidence.pid) == ("kworker/u64:3", 181)


BOOT_LOSS = (
    b"4,100,1000,-;NVRM: The NVIDIA GPU 0000:b3:00.0",
    b"4,101,1001,-;               NVRM: (PCI ID: 10de:26b5) installed in this system has",
    b"4,102,1002,-;               NVRM: fallen off the bus and is not responding to commands.",
)


def read_stream(*lines: bytes) -> list[Evidence]:
    state, found = NOTHING, []
    for line in lines:
        state, evidence = follow(state, line)
        if evidence is not None:
            found.append(evidence)
    return found


def test_a_gpu_that_is_gone_at_boot_keeps_the_address_of_the_first_record() -> None:
    (evidence,) = read_stream(BOOT_LOSS[0], b"6,7,7,-;usb 1-1: new device", *BOOT_LOSS[1:])
    assert (evidence.kind, evidence.code, evidence.pci) == ("host", "gpu_lost_at_boot", "0000:b3:00.0")


def test_the_driver_writes_it_as_one_record_of_three_lines() -> None:
    lines = (record.partition(b";")[2].strip() for record in BOOT_LOSS)
    record = b"4,100,1000,-;" + b"\\x0a".join(lines) + b"\n"
    for evidence in (parse_line(record), follow(NOTHING, record)[1]):
        assert evidence is not None
        assert (evidence.code, evidence.pci) == ("gpu_lost_at_boot", "0000:b3:00.0")


@pytest.mark.parametrize("row", SPOKEN, ids=lambda row: f"{row.kind}-{row.code}-{row.variant}")
def test_a_user_cannot_speak_for_the_kernel(row: Entry) -> None:
    """The kernel prints names that users choose, newlines and all: of a process (15 characters) first, of a file."""
    line = spoken(row)
    for name in (line[:15], "x\\x0a" + line[:13]):
        for message in (
            f"{name}[77]: segfault at 0 ip 00007f7c7ac69996 sp 00007f7c12fd error 4 in libc.so.6[7f7c7ac00000]",
            f"{name}: page allocation failure: order:0, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null)",
            f"{name} (77): drop_caches: 3",
        ):
            assert parse_line(f"4,1,1,-;{message}", companions=True) is None, message
    for message in (
        f"process '/tmp/x\\x0a{line}' started with executable stack",
        f"EXT4-fs warning (device sda1): ext4_dx_add_entry: Directory index full: x\\x0a{line}",
    ):
        assert parse_line(f"4,1,1,-;{message}", companions=True) is None
        assert follow(NOTHING, f"4,1,1,-;{message}".encode(), companions=True)[1] is None


def test_the_name_of_a_process_is_no_second_line() -> None:
    evidence = parse_line(
        "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=x\\x0aNVRM: Xid (PC, Ch 00000008, intr 0"
    )
    assert evidence is not None
    assert (evidence.code, evidence.process) == ("31", "x")


def test_an_address_is_not_kept_for_long() -> None:
    (evidence,) = read_stream(BOOT_LOSS[0], *[b"6,7,7,-;usb 1-1: new device"] * 20, *BOOT_LOSS[1:])
    assert evidence.pci is None


def test_a_message_with_an_xid_is_about_the_xid() -> None:
    text = "\n".join(record.decode().partition(";")[2] for record in BOOT_LOSS)
    alone = parse_line(text)
    assert alone is not None
    assert (alone.code, alone.pci) == ("gpu_lost_at_boot", "0000:b3:00.0")
    with_xid = parse_line(text + "\nNVRM: Xid (PCI:0000:b3:00.0): 79, GPU has fallen off the bus.")
    assert with_xid is not None
    assert (with_xid.kind, with_xid.code) == ("xid", "79")


def test_a_companion_hides_nothing_that_stands_in_the_same_message() -> None:
    lines = (
        "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        "NVRM: GPU 0000:a1:00.0: RmInitAdapter failed! (0x62:0x40:2168)",
    )
    for message in ("\n".join(lines), "4,1,1,-;" + "\\x0a".join(lines)):
        for companions in (False, True):
            evidence = parse_line(message, companions=companions)
            assert evidence is not None
            assert evidence.code == "gpu_init_failed"


LOCKUP = b"watchdog: BUG: soft lockup - CPU#94 stuck for 226906s! [swapper/94:0]"


def test_a_cpu_that_is_stuck_in_the_adapters_driver() -> None:
    found = read_message(LOCKUP + b"\nModules linked in: mlx5_core\nRIP: 0010:mlx5e_poll_ico_cq+0x8b/0x1a0 [mlx5_core]")
    assert [(item.kind, item.code) for item in found] == [("host", "soft_lockup"), ("ib", "napi_lockup")]
    guess = read_message(LOCKUP + b"\n ? mlx5e_napi_poll+0x142/0x680 [mlx5_core]\n net_rx_action+0x142/0x2a0")
    assert [item.code for item in guess] == ["soft_lockup"]
    assert read_message(b"RIP: 0010:mlx5e_poll_ico_cq+0x8b/0x1a0 [mlx5_core]") == ()


def test_what_a_link_error_says_is_mild_only_if_all_of_it_is() -> None:
    for text, variants in (
        (registers(1 << 20), ("sympathetic",)),
        (registers(1 << 20 | 1 << 4), ("parity",)),
        (registers(1 << 20 | 1 << 7), ()),  # a bit that the vendor does not explain
        (registers(1 << 20, 0, 1 << 16), ()),
        (registers(0, 0, 1 << 16), ()),
        ("NVLink: fatal error detected on link 1", ()),
        ("NVLink: fatal error detected on link 14(0x10, 0x0", ()),
    ):
        evidence = parse_line(f"NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, {text}")
        assert evidence is not None
        assert variants_of(evidence) == variants, text


def test_details_and_verdicts_of_one_switch_event() -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, "
    parts = [
        parse_line(head + rest)
        for rest in (
            "Fatal, Link 28 sourcetrack timeout error (First)",
            "Severity 1 Engine instance 28",
            "Data {0x0, 0x1}",
        )
    ]
    assert [part.part if part else None for part in parts] == [Part.WHOLE, Part.DETAIL, Part.DETAIL]


@given(st.binary(), st.booleans())
def test_any_bytes_in_any_family(data: bytes, companions: bool) -> None:
    for start in (
        b"",
        b"NVRM: ",
        b"amdgpu 0000:c3:00.0: ",
        b"mlx5_core 0000:c3:00.0: ",
        b"mce: [Hardware Error]: ",
        b"nvme nvme0: ",
    ):
        parse_line(start + data, companions=companions, allow_injected=True)
        follow(NOTHING, start + data)
        read_message(start + data)


_WORDS = st.sampled_from([spoken(row).encode() for row in SPOKEN])
_CUTS = st.tuples(st.integers(0, 200), st.integers(0, 200))
_PIECES = st.one_of(
    st.sampled_from([p.encode() for p in PREFIXES] + [b"\n", b" ", b"kernel: ", b" kernel: ", b",-;", b"] ", b";"]),
    st.builds(lambda line, cut: line[min(cut) : max(cut)], _WORDS, _CUTS),
    _WORDS,
)


@pytest.mark.parametrize(
    "prefix",
    [
        "   ",
        "<4>",
        "2026-11-29T10:00:00 ",
        "2026-11-29 10:00:00 ",
        "[ 12.3] <4>",
        "10.0.0.1: kern: warning: [2026-11-29T10:00:00Z]: ",
    ],
)
def test_a_process_whose_name_looks_like_a_prefix_hides_nothing(prefix: str) -> None:
    found = parse_line(f"{prefix}NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=a kernel: b, GPU has fallen off the bus.")
    assert found is not None
    assert (found.code, found.pci) == ("79", "0000:01:00")


@given(st.lists(_PIECES, max_size=6).map(b"".join))
@example(b"[ 130] any_name:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2)")
@example(b"[ 130] any_name:838:(pid 1441871): health recovery flow aborted, PCI reads still not working")
@example(b"Dec  6 19:25:33 node4 systemd-networkd[2385]: eth0: Lost carrier2026-09-08T01:00:00+0000 n1 kernel: x")
@example(b"4,4471,3023054882,-;Aug 17 06:18:01 host systemd-networkd[5398]: ib6: lost carrier")
@example(
    b"   amdgpu 0000:c3:00.0: amdgpu: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected! kernel: a"
)
def test_the_prefilter_passes_over_nothing_that_is_evidence(line: bytes) -> None:
    if b"\n" in line:
        return
    head, _, text = line.partition(b";")
    record = head.replace(b",", b"").replace(b"-", b"").isdigit() and head.count(b",") >= 3
    evidence = read_text(text, record=True) if record else read_text(line)
    if evidence is not None:
        assert may_be_fault(line), evidence


@given(st.lists(_PIECES, max_size=8).map(b"".join))
def test_variants_of_anything(line: bytes) -> None:
    for evidence in read_message(line, companions=True):
        assert all(variants_of(evidence)) or not variants_of(evidence)
        judge(CATALOG, evidence)
