"""Control groups come and go while a lab's are looked through."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.lab import cgroups


def test_a_group_that_ends_while_we_look_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """containerd removes a pod's group between our reading of its parent's entries and of its own."""
    for name, pid in (("a", 11), ("gone", 22), ("z", 33)):
        (tmp_path / "lab" / name).mkdir(parents=True)
        (tmp_path / "lab" / name / "cgroup.procs").write_text(f"{pid}\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path).name == "gone":
            (tmp_path / "lab" / "gone" / "cgroup.procs").unlink(missing_ok=True)
            raise FileNotFoundError(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert cgroups.members("lab") == {11, 33}
