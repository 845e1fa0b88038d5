"""`everstep faults`, as a person or a script uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.apps.faults_commands import app
from everstep.core.errors import InvalidInput, NotFound
from everstep.core.fault_page import render

DATA = Path(__file__).parent.parent / "data"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "faults.md"
KEYS = ["kind", "code", "pci", "pid", "process", "class", "severity", "action", "reason"]


def run(*arguments: str, lines: bytes | str = b"") -> str:
    result = CliRunner().invoke(app, list(arguments), input=lines, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_one_object_for_every_line() -> None:
    field = [json.loads(line) for line in (DATA / "kernel_lines.jsonl").read_text().splitlines()]
    printed = run("parse", "--json", lines="".join(case["line"] + "\n" for case in field))
    objects = [json.loads(line) for line in printed.splitlines()]
    assert len(objects) == len(field)
    for found, case in zip(objects, field, strict=True):
        assert list(found) == KEYS
        expected = case["expected"]
        assert found["kind"] == expected["kind"]
        assert expected["code"] in (None, found["code"])
        assert (found["pci"], found["pid"], found["process"]) == (expected["pci"], expected["pid"], expected["process"])
        assert (found["class"] is None) == (found["kind"] == "none")


def test_any_bytes_give_an_object() -> None:
    printed = run("parse", "--json", lines=b"\xff\xfe\x00\n\n" + b"x" * 100_000 + b"\nNVRM: Xid (PCI:0000:3b:00): 79")
    assert [json.loads(line)["kind"] for line in printed.splitlines()] == ["none", "none", "none", "xid"]


def test_for_people_only_faults_are_printed() -> None:
    printed = run("parse", lines="hello\nNVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=a, GPU has fallen off the bus.\n")
    assert printed.splitlines() == [
        "CRITICAL XID 79: GPU fell off the bus on 0000:3b:00, process a (7) [hardware, rebootNode]",
        "1 of 2 lines report a fault.",
    ]


def test_a_fault_has_one_name_everywhere() -> None:
    line = "mlx5_core 0000:0c:00.0 rdma0: Link down\n"
    name = run("explain", "ib:link_down").partition("\n")[0]
    assert name == "network link_down: a port lost its link"
    assert name in run("parse", lines=line)
    assert json.loads(run("parse", "--json", lines=line))["reason"] == name


def test_what_a_program_wrote_counts_only_when_asked_for() -> None:
    line = "12,1235,5679,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert json.loads(run("parse", "--json", lines=line))["kind"] == "none"
    assert json.loads(run("parse", "--json", "--allow-injected", lines=line))["code"] == 79
    assert "written by a program" in run("parse", "--allow-injected", lines=line)


def test_a_stream_keeps_what_it_has_begun() -> None:
    lines = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus and is not responding to commands.\n"
    found = [json.loads(line) for line in run("parse", "--json", lines=lines).splitlines()]
    assert [(item["kind"], item["pci"]) for item in found] == [("none", None), ("host", "0000:b3:00.0")]


def test_explain_reads_like_advice() -> None:
    text = run("explain", "79")
    assert text.startswith("XID 79: GPU fell off the bus\n")
    for part in (
        "The hardware.",
        "lost and has to go on from its last",
        "reboot",
        "Replace the node (2nd in 7 d",
        "Reboot the machine (RESTART_BM).",
    ):
        assert part in text
    assert all(len(line) <= 88 for line in text.splitlines())


@pytest.mark.parametrize("asked", ["xid:79", "XID 79", "79", "079", "XID79", "Xid: 79"])
def test_ways_to_name_a_code(asked: str) -> None:
    assert run("explain", asked).startswith("XID 79: ")


def test_every_row_can_be_explained() -> None:
    for kind, code, _ in shipped_catalog().entries:
        assert run("explain", f"{kind}:{code}").strip()


def test_forms_that_say_the_same_are_told_once() -> None:
    text = " ".join(run("explain", "149").split())
    assert "netir_link_evt/21, /32, /33, /34, /35, /36, /37: the cause is at the other end of the link" in text
    assert text.count("the cause is at the other end") == 1
    assert "netir_link_evt/2, /4, /10: signal integrity of the link [critical]." in text, "in the order of the numbers"
    assert text.count("NVLink5 error: NETIR") == 1, "what all forms begin with is said once, in the head line"
    assert {row.variant for row in shipped_catalog().of_code("149")} >= {"netir_link_evt/37", "netir_link_evt/40"}


def test_the_advice_is_no_table_of_other_tools() -> None:
    """What other tools do belongs into the source; keys of programs and numbers of their issues are no advice."""
    jargon = re.compile(r"gpud|NVSentinel|imbue|[a-z]_(?:node|fabric)\b|Disagreement|\(.*\b\d{4}\)| action$")
    texts = [(row.code, text) for row in shipped_catalog().entries.values() for text in (row.notes, row.escalate_when)]
    assert [item for item in texts if jargon.search(item[1])] == []


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("4711", "no fault has the code '4711'; `everstep faults list` shows all of them"),
        ("sxid", "'sxid' is a kind of fault and no code; `everstep faults list --kind sxid` shows its codes"),
        ("gpu_lst", "did you mean gpu_lost"),
    ],
)
def test_a_code_that_nobody_knows(asked: str, says: str) -> None:
    with pytest.raises(NotFound) as refused:
        run("explain", asked)
    assert says in str(refused.value)


def test_the_list() -> None:
    assert len(run("list").splitlines()) == len(shipped_catalog().entries)
    assert all(line.startswith("sxid ") for line in run("list", "--kind", "sxid").splitlines())
    with pytest.raises(InvalidInput, match="'nvme' is none of xid"):
        run("list", "--kind", "nvme")


def test_a_sites_table_is_used_and_shown(tmp_path: Path) -> None:
    site = tmp_path / "site.csv"
    site.write_text(
        "kind,code,meaning,class,severity,action,job_lost\n"
        "xid,79,,,,replaceNode,\n"
        "host,rack_door_open,the door of the rack is open,suspect,warning,callHuman,no\n"
    )
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert json.loads(run("parse", "--json", "--site", str(site), lines=line))["action"] == "replaceNode"
    listed = run("list", "--site", str(site)).splitlines()
    ours = [line for line in listed if "site.csv" in line]
    assert [line.partition("  [")[2] for line in ours] == ["changed by site.csv]", "added by site.csv]"]
    assert "action is replaceNode (shipped: rebootNode)" in run("list", "--changed", "--site", str(site))
    assert "Changed here by site.csv" in run("explain", "79", "--site", str(site))
    assert "changes nothing" in run("list", "--changed")
    with pytest.raises(InvalidInput, match="cannot read"):
        run("list", "--site", str(tmp_path / "none.csv"))


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(shipped_catalog()), (
        "run: everstep faults list --markdown > docs/reference/faults.md"
    )
    assert run("list", "--markdown") == PAGE.read_text()
