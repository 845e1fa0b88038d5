"""What else may lie in a run's directory, and what a disk may answer: nothing of it is run, waited for or destroyed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import records

import everstep_checkpoint.manifest as manifest_module
import everstep_checkpoint.reading as reading_module
import everstep_checkpoint.vault as vault_module
from everstep_checkpoint import (
    Every,
    GivenUpError,
    InvalidCheckpointError,
    Run,
    StateMismatchError,
    UnreadableCheckpointError,
    attach,
    verify,
)
from everstep_checkpoint.cli import main
from everstep_checkpoint.durable import write_file
from everstep_checkpoint.shard import parts_of
from everstep_checkpoint.snapshot import Snapshot


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(vault_module, "_AGAIN", 0.0)


def saved(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step_*"))


def trained(directory: Path, total: int) -> Path:
    with Run(directory, state={}, every=Every(steps=1)) as run:
        list(run.steps(total))
    return directory


def resumed(directory: Path) -> int | None:
    with Run(directory, state={}) as run:
        return run.resumed_from


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE, errno.EIO, errno.EACCES, errno.ETIMEDOUT],
                         ids=errno.errorcode.get)  # fmt: skip
def test_what_cannot_be_read_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A bad moment of the disk must not cost a checkpoint, and all of them at once no restart from nothing."""
    trained(tmp_path, 3)
    real, bad = manifest_module.hash_file, ["step_00000003"]

    def stumble(path: Path) -> Any:
        if any(part in str(path) for part in bad):
            raise OSError(number, os.strerror(number))
        return real(path)

    monkeypatch.setattr(manifest_module, "hash_file", stumble)
    assert resumed(tmp_path) == 2
    bad[:] = ["step_"]
    with pytest.raises(UnreadableCheckpointError, match="step_00000003"):
        resumed(tmp_path)
    assert main(["latest", str(tmp_path)]) == 1
    bad.clear()
    assert saved(tmp_path) == ["step_00000001", "step_00000002", "step_00000003"]
    assert resumed(tmp_path) == 3


def test_a_bad_moment_is_over_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 3)
    real, answers = manifest_module.hash_file, [errno.ESTALE]

    def stumble(path: Path) -> Any:
        if answers:
            raise OSError(answers.pop(), "stale")
        return real(path)

    monkeypatch.setattr(manifest_module, "hash_file", stumble)
    assert resumed(tmp_path) == 3


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000, "null", "", "\x00", '{"format":1}', '{"format":1,"files":[],"world_size":1,"step":9}',
        '{"format":1,"files":{},"world_size":1e999,"step":9}', '{"format":1,"files":{},"world_size":-1,"step":9}',
        '{"format":1,"files":{},"world_size":0,"step":9,"foreign":true}',
        '{"format":1,"files":{},"world_size":1000000000,"step":9}',
    ],
    ids=["deep", "null", "empty", "nul", "little", "list", "infinite", "negative", "none", "huge"],
)  # fmt: skip
def test_a_manifest_may_be_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "step_00000009").mkdir()
    (tmp_path / "step_00000009/MANIFEST.json").write_text(text)
    codes = [main([command, str(tmp_path)]) for command in ("ls", "verify", "latest")]
    assert codes == [0, 1, 1]
    assert "DAMAGED" in capsys.readouterr().out
    assert resumed(tmp_path) is None


@pytest.mark.parametrize("moment", ["NaN", "1e999", "1e20", "-5", '"x"', "null"])
def test_a_moment_that_no_calendar_has(tmp_path: Path, capsys: pytest.CaptureFixture[str], moment: str) -> None:
    manifest = trained(tmp_path, 1) / "step_00000001/MANIFEST.json"
    whole = json.loads(manifest.read_text()) | {"time": "HERE"}
    manifest.write_text(json.dumps(whole).replace('"HERE"', moment))
    assert main(["ls", str(tmp_path)]) == 0
    assert " -" in capsys.readouterr().out
    assert main(["ls", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["saved_at"] is None


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["MANIFEST.json", "rank-0000.shard"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, what: str) -> None:
    file = trained(tmp_path, 2) / "step_00000002" / what
    file.unlink()
    os.mkfifo(file)
    assert resumed(tmp_path) == 1


def test_a_manifest_cannot_point_out_of_its_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    entry = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    for name in ("../outside", str(outside)):
        folder = tmp_path / "run/step_00000001"
        folder.mkdir(parents=True)
        whole = {"format": 1, "step": 1, "world_size": 1, "foreign": True, "files": {name: entry}}
        (folder / "MANIFEST.json").write_text(json.dumps(whole))
        with pytest.raises(InvalidCheckpointError, match="another directory"):
            verify(folder)
        shutil.rmtree(folder)
    with pytest.raises(InvalidCheckpointError, match="not the name"):
        vault_module.Vault(tmp_path / "run", "x").manifest("../elsewhere/step_00000001")


class Trap:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (os.environ["TRAP"],)


def plant(directory: Path, step: int, owner: int) -> None:
    """A checkpoint without a fault, by another user."""
    folder, body = directory / f"step_{step:08d}", pickle.dumps(Trap())
    folder.mkdir()
    shard = b"".join(parts_of(Snapshot(body)))
    about = json.dumps({"step": step, "rank": 0, "size": len(shard)}).encode()
    files = {"rank-0000.shard": shard, "rank-0000.json": about}
    whole: dict[str, Any] = {"format": 1, "step": step, "world_size": 1, "files": {}}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        whole["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "MANIFEST.json").write_text(json.dumps(whole))
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner, owner)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_nothing_of_a_stranger_is_run_where_everybody_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    directory = trained(tmp_path / "run", 2)
    directory.chmod(0o1777)
    plant(directory, 99, owner=4242)
    assert resumed(directory) == 2
    assert not (tmp_path / "sprung").exists()
    (directory / "step_00000099/MANIFEST.json").unlink()
    with pytest.raises(InvalidCheckpointError):
        verify(directory / "step_00000099")
    for name in saved(directory):
        shutil.rmtree(directory / name)
    plant(directory, 99, owner=4242)
    with pytest.raises(UnreadableCheckpointError, match="chmod o-w"):
        resumed(directory)
    assert not (tmp_path / "sprung").exists()
    # A file server that knows only one user gives that one to what we write ourselves, too.
    monkeypatch.setattr(reading_module, "_is_ours", lambda owner, directory: True)
    with pytest.raises(TypeError):  # what mkdir returned is no state; but it did run: the check above is what stops it
        resumed(directory)
    assert (tmp_path / "sprung").exists()


def test_links_and_files_under_our_names_go_and_what_they_point_to_stays(tmp_path: Path) -> None:
    run, other = trained(tmp_path / "run", 1), tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    for name in (".trash-x", ".tmp-x", "step_00000007"):
        (run / name).symlink_to(other)
    (run / ".tmp-file").touch()
    assert resumed(run) == 1
    left = {path.name for path in run.iterdir() if not path.name.startswith(".invalid-")}
    assert left == {".everstep", "records", "latest", "step_00000001"}
    assert [path.name for path in other.iterdir()] == ["precious"]


def test_small_files_of_killed_processes_go_when_they_are_old(tmp_path: Path) -> None:
    names = [".latest.123-0a1b2c3d", ".everstep/.owner.1-00000000", ".everstep/hub-0123456789abcdef.json"]
    keep = [".everstep/key", ".everstep/.mine", ".latest.9-0a1b2c3d"]
    trained(tmp_path, 1)
    for name in names + keep:
        (tmp_path / name).touch()
    for name in [*names, *keep[:2]]:
        os.utime(tmp_path / name, (1, 1))
    resumed(tmp_path)
    assert [name for name in names + keep if (tmp_path / name).exists()] == keep


def test_a_link_in_the_place_of_a_new_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "new").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "new", b"theirs")
    assert (tmp_path / "target").read_text() == "mine"


def test_the_own_folder_may_be_cleaned_away_under_the_run(tmp_path: Path) -> None:
    with Run(tmp_path, state={}, every=Every(steps=1, background=False)) as run:
        for step in run.steps(4):
            if step == 2:
                shutil.rmtree(tmp_path / ".everstep")
    assert run.saved_step == 4
    assert not [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]


def test_a_damaged_one_under_the_name_of_a_new_one_makes_way(tmp_path: Path) -> None:
    with Run(tmp_path, state={}, every=Every(steps=1, background=False)) as run:
        for step in run.steps(4):
            if step == 2:
                (tmp_path / "step_00000003").mkdir()
                (tmp_path / "step_00000003/MANIFEST.json").write_text("{}")
    assert run.saved_step == 4
    assert verify(tmp_path / "step_00000003").step == 3


def test_a_full_disk_of_a_dead_attempt_is_emptied_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1)
    (tmp_path / ".tmp-step_00000002-dead").mkdir()
    real = vault_module.replace_file

    def full(path: Path, data: bytes) -> None:
        if any(tmp_path.glob(".tmp-*")):
            raise OSError(errno.ENOSPC, "full")
        real(path, data)

    monkeypatch.setattr(vault_module, "replace_file", full)
    assert resumed(tmp_path) == 1
    monkeypatch.setattr(vault_module, "erase", lambda path: None)
    (tmp_path / ".tmp-step_00000002-alien").mkdir()
    with pytest.raises(OSError, match=r"No space left on device: .*\.everstep"):
        resumed(tmp_path)


def test_a_save_that_fails_leaves_nothing_that_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = vault_module.Vault(tmp_path, "a")
    vault.open()
    snapshot = Snapshot(b"", [memoryview(bytes(3000))])
    with pytest.raises(GivenUpError):
        vault.write_rank(5, 1, snapshot, lambda: True)
    assert not vault.staging(5).exists()


def test_run_and_attach_do_not_take_each_others_checkpoints(tmp_path: Path) -> None:
    trained(tmp_path / "run", 1)
    with pytest.raises(StateMismatchError, match="saved by Run"), attach(tmp_path / "run"):
        pass
    with attach(tmp_path / "own") as own:
        (own.begin(1) / "x").touch()
        assert own.commit(1)
    with pytest.raises(StateMismatchError, match="saved by attach"):
        resumed(tmp_path / "own")


def test_a_file_of_the_program_may_not_be_called_as_ours(tmp_path: Path) -> None:
    with attach(tmp_path) as own:
        (own.begin(1) / "MANIFEST.json").touch()
        assert not own.commit(1)
    assert saved(tmp_path) == []
    assert "MANIFEST.json: this name is taken" in str(records(tmp_path)[0])
