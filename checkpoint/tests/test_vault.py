"""What may be resumed from, what is published, and what is deleted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep_checkpoint import InvalidCheckpointError, SupersededError, verify
from everstep_checkpoint.durable import write_file
from everstep_checkpoint.manifest import rank_manifest_name, shard_name
from everstep_checkpoint.shard import read_shard, write_shard
from everstep_checkpoint.snapshot import HostMemory
from everstep_checkpoint.vault import Vault


def write_rank(vault: Vault, step: int, rank: int) -> str:
    """What Run does on every rank; returns the manifest's hash."""
    staged = vault.staging(step)
    staged.mkdir(exist_ok=True)
    snapshot = HostMemory().take({"step": step, "rank": rank, "bulk": bytes(2000)})
    size, sha256 = write_shard(staged / shard_name(rank), snapshot)
    manifest = json.dumps({"step": step, "rank": rank, "size": size, "sha256": sha256}).encode()
    write_file(staged / rank_manifest_name(rank), manifest)
    return hashlib.sha256(manifest).hexdigest()


def save(vault: Vault, step: int, ranks: int = 2) -> Path:
    reports = {rank: write_rank(vault, step, rank) for rank in range(ranks)}
    return vault.publish(step, reports, {}).path


def opened(directory: Path, token: str = "a") -> Vault:
    vault = Vault(directory, token)
    vault.open()
    return vault


def steps(directory: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in directory.glob("step_*"))


def truncate(path: Path) -> None:
    shard = path / shard_name(1)
    os.truncate(shard, shard.stat().st_size - 1)


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / shard_name(0)).read_bytes())
    data[len(data) // 2] ^= 1
    (path / shard_name(0)).write_bytes(data)


def empty(path: Path) -> None:
    (path / shard_name(0)).write_bytes(b"")


def lose_a_shard(path: Path) -> None:
    (path / shard_name(1)).unlink()


def lose_the_manifest(path: Path) -> None:
    (path / "MANIFEST.json").unlink()


def lose_a_rank_manifest(path: Path) -> None:
    (path / rank_manifest_name(1)).unlink()


def tear_the_manifest(path: Path) -> None:
    text = (path / "MANIFEST.json").read_text()
    (path / "MANIFEST.json").write_text(text[: len(text) // 2])


def forget_a_rank(path: Path) -> None:
    whole = json.loads((path / "MANIFEST.json").read_text())
    del whole["files"][shard_name(1)]
    (path / "MANIFEST.json").write_text(json.dumps(whole))


def come_from_elsewhere(path: Path) -> None:
    path.rename(path.with_name("step_00009999"))


DAMAGE = [truncate, flip_a_bit, empty, lose_a_shard, lose_the_manifest, lose_a_rank_manifest, tear_the_manifest,
          forget_a_rank, come_from_elsewhere]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_never_resumed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    vault = opened(tmp_path)
    save(vault, 10)
    newest = save(vault, 20)
    assert verify(newest).step == 20
    damage(newest)
    found = opened(tmp_path, "b").newest_valid()
    assert found is not None
    assert found.step == 10
    assert steps(tmp_path) == [10], "the damaged one lost its name"
    assert len(list(tmp_path.glob(".invalid-*"))) == 1, "and is kept for a look"


def test_nothing_sound_means_a_fresh_start(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    assert vault.newest_valid() is None
    flip_a_bit(save(vault, 10))
    assert opened(tmp_path, "b").newest_valid() is None


def test_only_one_damaged_directory_is_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        flip_a_bit(save(opened(tmp_path), step))
        vault = opened(tmp_path, "b")
        vault.newest_valid()
        vault.sweep()
    assert [path.name.split("-")[1] for path in tmp_path.glob(".invalid-*")] == ["step_00000030"]


def test_a_shard_is_checked_again_where_it_is_loaded(tmp_path: Path) -> None:
    path = save(opened(tmp_path), 10)
    size, sha256 = verify(path).files[shard_name(0)]
    assert read_shard(path / shard_name(0), size, sha256)["step"] == 10
    flip_a_bit(path)
    with pytest.raises(InvalidCheckpointError, match="does not match its manifest"):
        read_shard(path / shard_name(0), size, sha256)


def test_a_manifest_that_is_not_the_reported_one_is_not_published(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    reports = {rank: write_rank(vault, 10, rank) for rank in range(2)}
    with pytest.raises(InvalidCheckpointError, match="rank 1 reported"):
        vault.publish(10, reports | {1: "0" * 64}, {})
    truncate(vault.staging(10))
    with pytest.raises(InvalidCheckpointError, match="not as long as rank 1 reported"):
        vault.publish(10, reports, {})
    assert steps(tmp_path) == []


def test_an_older_attempt_publishes_nothing_any_more(tmp_path: Path) -> None:
    old = opened(tmp_path, "old")
    save(old, 10)
    opened(tmp_path, "new")
    with pytest.raises(SupersededError, match="new has taken over"):
        save(old, 20)
    assert steps(tmp_path) == [10]


def test_what_is_published_is_never_overwritten(tmp_path: Path) -> None:
    old = opened(tmp_path, "old")
    first = save(old, 10)
    before = {path.name: path.stat().st_ino for path in first.iterdir()}
    new = opened(tmp_path, "new")
    assert save(new, 10) == first
    assert {path.name: path.stat().st_ino for path in first.iterdir()} == before
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_newest_stay_and_the_one_resumed_from(tmp_path: Path) -> None:
    save(opened(tmp_path), 5)
    vault = opened(tmp_path, "b")
    found = vault.newest_valid()
    assert found is not None
    for step in range(10, 60, 10):
        save(vault, step)
        vault.retain(keep=3)
    assert steps(tmp_path) == [5, 30, 40, 50]
    assert not list(tmp_path.glob(".trash-*"))


def test_damaged_ones_do_not_count_among_the_two_to_keep(tmp_path: Path) -> None:
    earlier = opened(tmp_path)
    for step in (10, 20):
        save(earlier, step)
    for step in (30, 40):
        flip_a_bit(save(earlier, step))
    vault = opened(tmp_path, "b")  # has verified none of them
    save(vault, 50)
    vault.retain(keep=2)
    assert steps(tmp_path) == [20, 30, 40, 50], "50 and 20 are the two newest sound ones; only what is older may go"


def test_old_temp_and_trash_go_and_strangers_stay(tmp_path: Path) -> None:
    vault = opened(tmp_path)
    for name in (".tmp-step_00000010-dead", ".trash-step_00000005-1", "step_notes", "mine"):
        (tmp_path / name).mkdir()
    assert vault.newest_valid() is None
    vault.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".everstep", "mine", "step_notes"]
