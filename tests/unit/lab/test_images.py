"""Images are named by everything that goes into them, and built only when that changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from everstep.lab import image_context, images
from everstep.lab.errors import LabError

PROJECT = images.project_root()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what images are made of, free to be changed."""
    copy = tmp_path / "project"
    skip = shutil.ignore_patterns("__pycache__", "lab", "sim", "testing")
    shutil.copytree(PROJECT / "images", copy / "images")
    shutil.copytree(PROJECT / "src", copy / "src", ignore=skip)
    shutil.copytree(PROJECT / "checkpoint" / "src", copy / "checkpoint" / "src", ignore=skip)
    for name in ("uv.lock", "pyproject.toml"):
        shutil.copy(PROJECT / name, copy / name)
    (copy / "src" / "everstep" / "lab").mkdir()
    return copy


class Builds:
    """Counts what would have been built, and builds nothing."""

    def __init__(self, project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = project
        self.made: list[str] = []
        monkeypatch.setenv("EVERSTEP_CACHE", str(cache))
        locked = cache / "locked"
        cache.mkdir()
        locked.write_text("msgspec==1\n")
        monkeypatch.setattr(image_context, "requirements", lambda *_: locked)

        def make(builder: images._Builder, name: str, recipe: images.Recipe, log: Path) -> Path:
            self.made.append(name)
            archive = builder._archive(name, recipe, log)
            archive.touch()
            return archive

        monkeypatch.setattr(images._Builder, "_make", make)

    def build(self, *names: str) -> list[str]:
        """Names of the images that were not there."""
        self.made.clear()
        images.build_images(names, lambda name, line: None, project=self.project)
        return sorted(self.made)


@pytest.fixture
def builds(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(project, tmp_path / "cache", monkeypatch)


ALL = ("everstep", "slurm-24.11", "slurm-26.05", "pause")


def test_a_second_call_builds_nothing(builds: Builds) -> None:
    assert builds.build(*ALL) == sorted(ALL)
    assert builds.build(*ALL) == []


@pytest.mark.parametrize(
    ("path", "rebuilt"),
    [
        ("images/pause/pause.c", ["pause"]),
        ("images/slurm/Containerfile", ["slurm-24.11", "slurm-26.05"]),
        ("src/everstep/core/errors.py", ["everstep", "slurm-24.11", "slurm-26.05"]),
        ("checkpoint/src/everstep_checkpoint/__init__.py", ["slurm-24.11", "slurm-26.05"]),
    ],
)
def test_a_change_rebuilds_what_it_is_in(builds: Builds, path: str, rebuilt: list[str]) -> None:
    builds.build(*ALL)
    with (builds.project / path).open("a") as file:
        file.write("\n")
    assert builds.build(*ALL) == rebuilt


def test_an_executable_bit_is_content(builds: Builds) -> None:
    builds.build(*ALL)
    (builds.project / "images/everstep/rootfs/usr/local/bin/everstep").chmod(0o644)
    assert builds.build(*ALL) == ["everstep"]


def test_the_lab_itself_is_in_no_image(builds: Builds) -> None:
    builds.build(*ALL)
    (builds.project / "src/everstep/lab/new.py").write_text("x = 1\n")
    assert builds.build(*ALL) == []


def test_an_unknown_image_is_one_clear_line(builds: Builds) -> None:
    with pytest.raises(LabError, match=r"no such image: slurm-1; there are everstep, slurm-22.05"):
        builds.build("slurm-1")


def test_a_missing_program_is_one_clear_line(builds: Builds) -> None:
    with pytest.raises(LabError, match="image coredns needs the program coredns"):
        builds.build("coredns")


def test_contexts_are_equal_whenever_their_content_is(tmp_path: Path) -> None:
    source = tmp_path / "a.sh"
    source.write_text("#!/bin/sh\n")
    source.chmod(0o700)
    image_context.assemble([(source, "bin/a.sh")], [], tmp_path / "context")
    made = tmp_path / "context" / "bin" / "a.sh"
    assert made.stat().st_mode & 0o777 == 0o755
    assert made.stat().st_mtime == made.parent.stat().st_mtime == 1_577_836_800


def test_keys_see_the_boundaries_of_parts() -> None:
    assert image_context.digest([b"ab", b"c"]) != image_context.digest([b"a", b"bc"])
