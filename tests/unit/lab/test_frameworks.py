"""The demo with torch: what its user types, where the packages come from, and what is said when they cannot come."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from everstep.lab import image_context
from everstep.lab.demo import frameworks
from everstep.lab.demo.stage import DemoOptions, job_arguments, reference_script
from everstep.lab.errors import LabError

Usage = namedtuple("Usage", "total used free")


def test_the_numpy_job_is_submitted_as_it_always_was() -> None:
    options, prepare = frameworks.framework_of("numpy", DemoOptions())
    assert job_arguments(options) == ["train.sbatch", "--steps=200", "--step-time", "0.15", "--save-seconds", "2"]
    assert options == DemoOptions()
    assert prepare.__name__ == "<lambda>"


def test_the_torch_job_gets_its_packages_by_the_environment() -> None:
    line = job_arguments(frameworks.with_torch(DemoOptions()))
    assert line[0].startswith("--export=ALL,PYTHONPATH=/home/software/torch,")
    assert line[1:] == ["train-torch.sbatch", "--steps=200", "--step-time", "0.15"]


def test_the_reference_run_has_the_ranks_of_the_batch_script() -> None:
    options = frameworks.with_torch(DemoOptions())
    script = (Path(__file__).parents[3] / "examples" / options.script).read_text()
    assert "--nodes=2\n" in script
    assert "--ntasks-per-node=2 " in script
    assert options.ranks == 4


def test_the_reference_run_fails_with_any_of_its_ranks(tmp_path: Path) -> None:
    """With a `python3` that only notes its rank."""
    fake = tmp_path / "python3"
    fake.write_text('#!/bin/sh\ntouch "$HOME/$RANK-of-$WORLD_SIZE-$OMP_NUM_THREADS"\n[ "$RANK" != "$BAD" ]\n')
    fake.chmod(0o755)

    def run(bad: str) -> int:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "BAD": bad}
        script = reference_script(frameworks.with_torch(DemoOptions()))
        return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False).returncode

    assert run("none") == 0
    assert {path.name for path in tmp_path.glob("*-of-*")} == {f"{rank}-of-4-1" for rank in range(4)}
    fake.write_text('#!/bin/sh\n[ "$RANK" != "$BAD" ]\n')  # ends before the next rank has begun
    assert [run(str(rank)) for rank in [*range(4)] * 10] == [1] * 40


def test_an_unknown_framework_is_named_with_the_known_ones() -> None:
    with pytest.raises(LabError, match="no example for 'jax': choose one of numpy, torch"):
        frameworks.framework_of("jax", DemoOptions())


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file that wants one package."""
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path))
    file = tmp_path / "locked"
    file.write_text("torch==2\n")
    monkeypatch.setattr(frameworks, "requirements", lambda *_, **__: file)
    return file


def test_a_full_disk_is_said_before_anything_is_downloaded(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "install", lambda *_: pytest.fail("the download began"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 11_000_000_000))
    with pytest.raises(LabError, match=r"torch needs 12 GB of disk below .*, 11\.0 GB are free"):
        frameworks.install_torch("24.11")


def test_no_wheel_for_the_python_of_a_release_is_one_line(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 10**12))

    def no_wheel(command: list[str], log: Path, what: str) -> None:
        assert command[command.index("--python-version") + 1] == "3.14"
        raise LabError(f"{what}: uv failed (1): torch has no wheels with a matching Python ABI tag")

    monkeypatch.setattr(image_context, "run_logged", no_wheel)
    with pytest.raises(LabError, match=r"^Slurm 26\.05 comes with Python 3\.14, .*no wheels.*") as error:
        frameworks.install_torch("26.05")
    assert "\n" not in str(error.value)
    assert list((locked.parent / "torch").glob("tmp*")) == [], "half an installation stays behind"


def test_what_is_installed_is_not_installed_again(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 10**12))
    monkeypatch.setattr(image_context, "run_logged", lambda command, log, what: calls.append(what))
    first = frameworks.install_torch("24.11")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, 0))
    assert frameworks.install_torch("24.11") == first
    assert calls == ["Python 3.13 packages"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "lib.so").write_bytes(b"many bytes")
    return folder


def test_the_user_sees_the_same_files_not_copies(packages: Path, tmp_path: Path) -> None:
    frameworks.share(packages, tmp_path / "homes" / "software" / "torch")
    seen = tmp_path / "homes" / "software" / "torch" / "torch" / "lib.so"
    assert seen.samefile(packages / "torch" / "lib.so")


def test_another_file_system_gets_copies(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", elsewhere)
    frameworks.share(packages, tmp_path / "homes" / "software" / "torch")
    seen = tmp_path / "homes" / "software" / "torch" / "torch" / "lib.so"
    assert seen.read_bytes() == b"many bytes"
    assert not seen.samefile(packages / "torch" / "lib.so")
