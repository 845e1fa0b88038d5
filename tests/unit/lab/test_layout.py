"""Names and addresses: labs and nodes never overlap, and requests that cannot work are refused."""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path

import msgspec
import pytest

from everstep.lab.cluster import Lab
from everstep.lab.errors import LabError
from everstep.lab.layout import MAX_LABS, MAX_NODES, Addresses, LabConfig, LabLayout, LabPlan, existing_labs


def test_no_two_labs_share_an_address() -> None:
    everything = [
        network for lab in map(Addresses, range(MAX_LABS)) for network in (lab.nodes, lab.pods, lab.host_network)
    ]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(everything, 2))


@pytest.mark.parametrize("index", [0, MAX_LABS - 1])
def test_every_node_has_an_address_and_pods_of_its_own(index: int) -> None:
    lab = Addresses(index)
    pods = [lab.node_pods(number) for number in range(MAX_NODES)]
    nodes = [ipaddress.IPv4Address(lab.node(number)) for number in range(MAX_NODES)]
    assert len(set(pods)) == len(set(nodes)) == MAX_NODES
    assert all(network.subnet_of(lab.pods) for network in pods)
    assert all(address in lab.nodes for address in nodes)
    assert lab.gateway not in map(str, nodes)


def test_spares_are_the_last_gpu_nodes() -> None:
    config = LabConfig(nodes=2, spares=1)
    assert config.all_nodes == ["sys-1", "gpu-1", "gpu-2", "gpu-3"]
    assert config.spare_nodes == ["gpu-3"]


@pytest.mark.parametrize(
    "config",
    [
        LabConfig(name="Upper"),
        LabConfig(name="a/b"),
        LabConfig(name=""),
        LabConfig(name="x" * 21),
        LabConfig(nodes=-1),
        LabConfig(gpus=17),
        LabConfig(nodes=MAX_NODES),
    ],
)
def test_a_request_that_cannot_work_is_refused(config: LabConfig) -> None:
    with pytest.raises(LabError):
        config.check()


@pytest.mark.parametrize("name", ["..", ".", "", "../../etc", "/", "a/../..", "one two", "a\n", "-rf"])
def test_what_is_no_name_of_a_lab_is_never_a_place_on_disk(name: str) -> None:
    """`everstep lab down --name ..` would have removed what is not a lab's, and ended every process of the machine."""
    with pytest.raises(LabError, match="lab name"):
        LabLayout.of(name)


def test_only_directories_with_a_plan_are_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    assert existing_labs() == []
    (tmp_path / "stray").mkdir()
    (tmp_path / "No Lab").mkdir()
    (tmp_path / "No Lab" / "lab.json").write_text("{}")
    LabLayout.of("mine").root.mkdir()
    LabLayout.of("mine").plan_file.write_text("{}")
    assert existing_labs() == ["mine"]


def test_which_lab_is_asked_only_when_it_is_not_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    with pytest.raises(LabError, match="none is up"):
        Lab.find()
    for name in ("one", "two"):
        root = LabLayout.of(name).root
        root.mkdir()
        plan = LabPlan(config=LabConfig(name=name), binaries="/b", archives=[])
        LabLayout.of(name).plan_file.write_bytes(msgspec.json.encode(plan))
    assert Lab.find("two").plan == LabPlan(config=LabConfig(name="two"), binaries="/b", archives=[])
    with pytest.raises(LabError, match=r"several \(one, two\)"):
        Lab.find()
    with pytest.raises(LabError, match="no lab 'three'; there is one, two; `everstep lab up --name three` makes it"):
        Lab.find("three")


def test_two_who_start_the_same_lab_at_once_and_an_unusable_place_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.lab.cluster._check_place", lambda: None)
    monkeypatch.setattr("everstep.lab.cluster.networks.namespaces_of", lambda _: [])
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    plan = LabPlan(config=LabConfig(name="mine"), binaries="/b", archives=[])
    monkeypatch.setattr("everstep.lab.cluster.Path.exists", lambda _: False)  # both have looked before either made it
    LabLayout.of("mine").root.mkdir()
    with pytest.raises(LabError, match="somebody else"):
        Lab.up(plan)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path / "file"))
    with pytest.raises(LabError, match="cannot make"):
        Lab.up(plan)


def test_an_interrupted_up_ends_what_it_had_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor first: until that has joined the lab's control group, nobody else would find it."""
    ended: list[str] = []

    class Supervisor:
        def kill(self) -> None:
            ended.append("supervisor")

        def wait(self) -> None:
            ended.append("waited for")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    monkeypatch.setattr("everstep.lab.cluster._check_place", lambda: None)
    monkeypatch.setattr("everstep.lab.cluster.networks.namespaces_of", lambda _: [])
    monkeypatch.setattr(Lab, "_supervisor", lambda _: Supervisor())
    monkeypatch.setattr(Lab, "_follow", interrupted)
    monkeypatch.setattr("everstep.lab.cluster.tear_down", lambda layout: ended.append(layout.name))
    with pytest.raises(KeyboardInterrupt):
        Lab.up(LabPlan(config=LabConfig(name="mine"), binaries="/b", archives=[]))
    assert ended == ["supervisor", "waited for", "mine"]
