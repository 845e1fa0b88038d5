"""What the documentation names must exist: files, functions in them, and pages that it links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PLACE = re.compile(r"`((?:src|checkpoint|charts|images|examples|tests|kubernetes|benchmarks)/[\w./-]+?)(?:::(\w+))?`")
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_named_places_exist(page: Path) -> None:
    wrong = []
    for path, name in PLACE.findall(page.read_text()):
        target = ROOT / path
        if not target.exists() or (
            name and not re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", target.read_text(), re.M)
        ):
            wrong.append(f"{path}::{name}" if name else path)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    commands = {line.partition("#")[0].strip() for block in blocks for line in block.splitlines()}
    assert commands == {
        "make demo",  # tests/lab/test_demo.py runs what it starts, tests/lab/test_quickstart.py its set-up
        "make test",  # this is it
        "helm install everstep charts/everstep --namespace everstep-system --create-namespace",  # test_machinery.py
    }


def test_the_architecture_page_follows_the_fault_by_file_and_function() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    assert len([name for _, name in PLACE.findall(text) if name]) >= 15
