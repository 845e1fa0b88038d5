"""State, events, requests, stores, volumes: what the lab writes and reads again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolumeClaim

from everstep.lab import binaries, imagestore
from everstep.lab.errors import LabError
from everstep.lab.layout import LabConfig, LabLayout
from everstep.lab.requests import ask, serve_requests
from everstep.lab.setup import images_for
from everstep.lab.state import LabState, ProcessId, append_event, read_events, read_state, write_state
from everstep.lab.storage import volume_for


def test_state_survives_being_written(tmp_path: Path) -> None:
    layout = LabLayout("x", tmp_path)
    assert read_state(layout) is None
    state = LabState("starting", ProcessId(1, 2), 3.0)
    write_state(layout, state)
    assert read_state(layout) == state
    layout.state_file.write_text("{")
    with pytest.raises(LabError, match=r"cannot read .*state\.json"):
        read_state(layout)


def test_events_are_read_once_and_only_when_whole(tmp_path: Path) -> None:
    layout = LabLayout("x", tmp_path)
    assert read_events(layout.events_file) == ([], 0)
    append_event(layout, "one")
    append_event(layout, "two", problem=True)
    with layout.events_file.open("ab") as file:
        file.write(b'{"time": 1, "te')
    events, offset = read_events(layout.events_file)
    assert [(event.text, event.problem) for event in events] == [("one", False), ("two", True)]
    with layout.events_file.open("ab") as file:
        file.write(b'xt": "three"}\n')
    assert [event.text for event in read_events(layout.events_file, offset)[0]] == ["three"]


@contextlib.contextmanager
def _serving(layout: LabLayout) -> Iterator[None]:
    async def double(number: int) -> int:
        return 2 * number

    async def refuse() -> None:
        raise LabError("not today")

    loop = asyncio.new_event_loop()
    task = loop.create_task(serve_requests(layout, {"double": double, "refuse": refuse}))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _until_it_answers(layout: LabLayout) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            ask(layout, "double", number=1)
            return
        except LabError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_supervisor_answers_refuses_and_may_be_dead(tmp_path: Path) -> None:
    layout = LabLayout("x", tmp_path)
    with pytest.raises(LabError, match="does not answer"):
        ask(layout, "double", number=1)
    with _serving(layout):
        _until_it_answers(layout)
        assert ask(layout, "double", number=21) == 42
        with pytest.raises(LabError, match="not today"):
            ask(layout, "refuse")
        with pytest.raises(LabError, match="it knows double, refuse"):
            ask(layout, "explode")
        with pytest.raises(LabError, match="not a request"):
            ask(layout, "double", wrong=1)
    with pytest.raises(LabError, match="does not answer"):
        ask(layout, "double", number=1)


def test_a_nodes_store_shares_layers_and_owns_its_databases(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "node"
    layer = store / "root" / imagestore._SNAPSHOTS / "1" / "fs"
    layer.mkdir(parents=True)
    (layer / "file").write_text("layer")
    (store / "root" / imagestore._BLOBS).mkdir(parents=True)
    (store / "root" / imagestore._BLOBS / "abc").write_text("blob")
    database = store / "root" / "io.containerd.metadata.v1.bolt" / "meta.db"
    database.parent.mkdir()
    database.write_text("old")
    imagestore.clone_store(store, target)
    assert (target / imagestore._SNAPSHOTS / "1" / "fs" / "file").read_text() == "layer"
    assert (target / imagestore._BLOBS / "abc").read_text() == "blob"
    (target / "io.containerd.metadata.v1.bolt" / "meta.db").write_text("new")
    (target / imagestore._SNAPSHOTS / "1").unlink()  # as containerd's removal of a directory ends on a symlink
    assert database.read_text() == "old"
    assert (layer / "file").read_text() == "layer"


def test_a_store_that_a_lab_holds_is_not_deleted(tmp_path: Path) -> None:
    for name in ("current", "held", "free", "kept-1", "kept-2"):
        (tmp_path / name).mkdir()
    with imagestore.hold(tmp_path / "held"):
        kept, imagestore_kept = {"current", "held", "kept-1", "kept-2"}, imagestore._KEPT
        assert imagestore_kept == 2
        for age, name in enumerate(("kept-1", "kept-2", "held", "free")):
            import os  # noqa: PLC0415

            os.utime(tmp_path / name, (1000 - age, 1000 - age))
        imagestore._prune(tmp_path, tmp_path / "current")
        assert {path.name for path in tmp_path.iterdir()} == kept


def test_binaries_are_known_by_what_they_are_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "coredns").mkdir()
    for name in binaries._SOURCES:
        (tmp_path / name).write_text((binaries.sources() / name).read_text())
    monkeypatch.setattr(binaries, "sources", lambda: tmp_path)
    first = binaries.binaries_dir()
    assert binaries.binaries_dir() == first
    (tmp_path / "go.mod").write_text((tmp_path / "go.mod").read_text() + "// changed\n")
    assert binaries.binaries_dir() != first
    assert not binaries.built(first)


def test_a_lab_holds_the_images_that_it_needs() -> None:
    assert images_for(LabConfig(slurm="22.05")) == ["pause", "coredns", "everstep", "slurm-22.05"]
    assert images_for(LabConfig(slurm=None)) == ["pause", "coredns", "everstep"]
    with pytest.raises(LabError, match=r"choose one of 22\.05, 24\.11, 26\.05"):
        images_for(LabConfig(slurm="19.05"))


def _claim(storage_class: str, volume: str | None = None) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="homes", namespace="slurm", uid="u-1"),
        spec=PersistentVolumeClaimSpec(
            storageClassName=storage_class,
            volumeName=volume,
            accessModes=["ReadWriteMany"],
            resources=VolumeResourceRequirements(requests={"storage": "5Gi"}),
        ),
    )


def test_a_claim_of_our_class_gets_a_volume_of_its_own_and_no_other_does() -> None:
    volume = volume_for(_claim("shared"))
    assert volume is not None
    assert volume.spec is not None
    assert volume.spec.claimRef is not None
    assert (volume.spec.claimRef.namespace, volume.spec.claimRef.name, volume.spec.claimRef.uid) == (
        "slurm",
        "homes",
        "u-1",
    )
    assert volume.spec.capacity == {"storage": "5Gi"}
    assert volume_for(_claim("other")) is None
    assert volume_for(_claim("shared", "pvc-u-1")) is None
