"""The catalogue as data, and judging by it."""

from __future__ import annotations

import pytest

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.errors import InvalidInput
from everstep.core.fault_catalog import COLUMNS, load_catalog
from everstep.core.faults import classify, variant_of
from everstep.core.health import Evidence, FaultClass, FirstAction, Severity
from everstep.core.kernel_lines.parser import parse_line

HEADER = ",".join(COLUMNS)
GOOD = "79,,M,fell off the bus,gpu,hardware,critical,rebootNode,replaceNode,twice,2/7d,yes,line,RESTART_BM,,n,somewhere"
CATALOG = shipped_catalog()


def table(*rows: str) -> dict[str, str]:
    return {"xid": "\n".join((HEADER, *rows)) + "\n"}


def test_a_good_row() -> None:
    entry = load_catalog(table(GOOD)).find("xid", "79")
    assert entry is not None
    assert (entry.fault_class, entry.action, entry.escalate_to) == (
        FaultClass.HARDWARE,
        FirstAction.REBOOT_NODE,
        FirstAction.REPLACE_NODE,
    )
    assert entry.job_lost


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        (table(GOOD, GOOD), "row 3.*stands twice"),
        (table(GOOD.replace("hardware", "hardwear")), "row 2.*'hardwear' is none of"),
        (table(GOOD.replace("critical", "")), "row 2.*'severity' is empty"),
        (table(GOOD.replace("rebootNode", "reboot")), "row 2.*'reboot' is none of"),
        (table(GOOD.replace(",somewhere", ",")), "row 2.*'source' is empty"),
        (table(GOOD.replace(",yes,", ",y,")), "row 2.*job_lost"),
        (table(GOOD, "x" + GOOD), "row 3.*an XID is a number"),
        (table(GOOD + ",more"), "row 2.*17 cells"),
        (table("79,,M"), "row 2.*17 cells"),
        (table(GOOD.replace("79,,", "79,fatal,")), "no row without a variant"),
        (table(GOOD.replace("RESTART_BM", "RESTART_ALL")), "row 2.*bucket 'RESTART_ALL'"),
        (table(GOOD.replace(",gpu,", ",chip,")), "row 2.*'chip' is none of"),
        (table(GOOD.replace("2/7d", "2/9d")), "row 2.*further than the 7 days"),
        (table(GOOD.replace(",line,", ",log,")), "row 2.*'log' is none of"),
        ({"nvme": HEADER}, "'nvme' is none of"),
        ({"xid": "code,meaning\n"}, "row 1: the columns must be"),
        ({"xid": ""}, "row 1: the columns must be"),
        ({"xid": HEADER + '\n"79,never closed'}, "unexpected end"),
    ],
)
def test_a_wrong_table_stops_the_start_and_names_the_row(tables: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        load_catalog(tables)


def test_the_shipped_tables_cover_the_published_codes() -> None:
    codes = {int(entry.code) for entry in CATALOG.entries.values() if entry.kind == "xid"}
    assert set(range(1, 173)) <= codes


def test_a_line_of_every_shipped_row_is_recognised() -> None:
    for entry in CATALOG.entries.values():
        if entry.kind == "xid" and not entry.variant:
            evidence = parse_line(f"NVRM: Xid (PCI:0000:3b:00): {entry.code}, pid=1, name=a, {entry.mnemonic}")
            assert evidence is not None
            fault = classify(CATALOG, evidence)
            assert fault.reason.startswith(f"XID {entry.code}: ")


@pytest.mark.parametrize(
    ("rest", "fault_class", "severity", "action"),
    [
        ("79, GPU has fallen off the bus.", "hardware", "critical", "rebootNode"),
        ("31, pid=1, name=a, Ch 0, MMU Fault", "application", "warning", "restartJob"),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "suspect", "info", "none"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "hardware", "critical", "rebootNode"),
        ("154, GPU recovery action changed from 0x0 (None) to 0x9 (New)", "suspect", "warning", "none"),
        ("154 (", "suspect", "warning", "none"),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x0)", "fabric", "critical", "resetGPU"),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x1)", "fabric", "warning", "none"),
        ("94, Contained: SM (0x1). RST: No, D-RST: No", "suspect", "warning", "restartJob"),
        ("94, Contained: SM (0x1). RST: Yes, D-RST: No", "hardware", "critical", "resetGPU"),
        ("45, pid=1, name=a, Ch 0 caused by previous Xid 145", "suspect", "info", "none"),
        ("999, pid=1, name=a", "suspect", "warning", "callHuman"),
    ],
)
def test_judgement(rest: str, fault_class: str, severity: str, action: str) -> None:
    evidence = parse_line(f"NVRM: Xid (PCI:0000:3b:00): {rest}")
    assert evidence is not None
    fault = classify(CATALOG, evidence)
    assert (fault.fault_class, fault.severity, fault.action) == (
        FaultClass(fault_class),
        Severity(severity),
        FirstAction(action),
    )


def test_only_xids_have_variants_by_words() -> None:
    assert variant_of(Evidence(kind="host", code="154", line="to 0x2")) == ""


@pytest.mark.parametrize(
    ("line", "variant", "action"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000", "netir_link_evt/37", "resetGPU"),
        ("NETIR_LINK_DOWN Fatal   XC0 i0 Link 09 (0x02552591 0x00000000", "netir_link_evt/37", "resetGPU"),
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x028525c6 0x00000000", "netir_link_evt/40", "callHuman"),
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x03f525c6 0x00000000", "netir_link_evt/63", "resetGPU"),
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09", "fatal", "resetGPU"),
        ("NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x0", "netir_ber_event/0x1", "none"),
        ("NETIR Fatal XC0 i0 Link -1 (0x000fe406", "fatal", "resetGPU"),
    ],
)
def test_what_an_nvlink5_line_says_of_a_link(line: str, variant: str, action: str) -> None:
    evidence = parse_line(f"NVRM: Xid (PCI:0018:01:00): 149, {line}")
    assert evidence is not None
    assert variant_of(evidence) == variant
    assert classify(CATALOG, evidence).action == action


def test_the_drivers_own_word_is_not_overruled_by_the_table() -> None:
    """Status 0x40 of RLW_REMAP is fatal by the table; a driver that prints Nonfatal knows better."""
    text = "NVRM: Xid (PCI:0000:00:08.0): 145, RLW_REMAP {} XC1 i0 Link 10 (0x00000082 0x00000040 0x0 0x0 0x0 0x0)"
    mild, grave = (parse_line(text.format(word)) for word in ("Nonfatal", "Fatal"))
    assert mild is not None
    assert grave is not None
    assert (classify(CATALOG, mild).severity, classify(CATALOG, mild).action) == ("warning", "none")
    assert (classify(CATALOG, grave).severity, classify(CATALOG, grave).action) == ("critical", "resetGPU")


@pytest.mark.parametrize(
    ("line", "severity", "action"),
    [
        ("20009, Non-fatal, Link 04 RX Short Error Rate", "warning", "none"),
        ("20009, Fatal, Link 04 RX Short Error Rate", "critical", "callHuman"),
        ("12028, Non-fatal, Link 61 egress non-posted PRIV error (First)", "critical", "callHuman"),
        ("99999, Fatal, Link 61 something new", "critical", "callHuman"),
        ("99999, Non-fatal, Link 61 something new", "warning", "none"),
        ("99999, something new", "warning", "none"),
        ("26006, SOE HALTED", "critical", "rebootNode"),
    ],
)
def test_a_switch_is_believed_when_it_says_fatal(line: str, severity: str, action: str) -> None:
    evidence = parse_line(f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {line}")
    assert evidence is not None
    fault = classify(CATALOG, evidence)
    assert (fault.severity, fault.action) == (severity, action)
