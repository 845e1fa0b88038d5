"""The quickstart works as it is written: every command of the page, in its order, in one shell, in a fresh copy."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.lab.cluster import remove
from everstep.lab.layout import existing_labs

pytestmark = pytest.mark.lab
PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "tutorial" / "quickstart.md"
LAB = "tour"
SECONDS = 280.0


def commands(page: str) -> list[str]:
    """The page's console blocks, whose lines carry no prompt."""
    return re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A copy of the working tree without anything that git ignores, as a clone would be; the lab is gone afterwards."""
    if LAB in existing_labs():
        pytest.fail(f"a lab {LAB!r} is up already: `everstep lab down --name {LAB}` ends it")
    ours = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(ours, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = PROJECT / name, tmp_path / name
        if source.is_file():  # else: deleted, and not committed yet
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    yield tmp_path
    remove(LAB)


def test_every_command_of_the_quickstart_works(clone: Path) -> None:
    blocks = commands(PAGE.read_text())
    assert len(blocks) >= 5, f"{PAGE} has {len(blocks)} console blocks: is their form another now?"
    # Each block is shown before it runs, so that a failure names its commands; the first that fails ends the shell.
    script = "set -e -o pipefail\n" + "".join(f"printf '%s\\n' {shlex.quote(text)}\n{text}" for text in blocks)
    before = {path.name for path in clone.iterdir()}
    done = subprocess.run(
        ["bash", "-c", script], cwd=clone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=SECONDS,
        env={name: value for name, value in os.environ.items() if name not in ("EVERSTEP_LAB", "KUBECONFIG")},
    )  # fmt: skip
    assert done.returncode == 0, f"the last command failed ({done.returncode}):\n{done.stdout[-6000:]}"
    assert re.search(r"^gpu-1-xid-79-\S+ .* Succeeded ", done.stdout, re.MULTILINE), done.stdout
    assert "attempt 1: 2 ranks, from step" in done.stdout, done.stdout
    assert {path.name for path in clone.iterdir()} == before | {".venv"}, "the page leaves files behind"
    assert LAB not in existing_labs(), "the page leaves its lab behind"
