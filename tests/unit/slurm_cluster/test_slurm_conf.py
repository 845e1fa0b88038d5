"""Slurm's configuration files, release by release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core import slurm_conf
from everstep.core.errors import InvalidInput
from everstep.core.slurm_conf import PartitionConf, PoolConf, SlurmConf
from everstep.core.slurm_keys import keys_of, unknown_key

CONF = SlurmConf(
    cluster="demo",
    version="24.11",
    controller_host="demo-slurmctld-0",
    controller_address="demo-slurmctld",
    pools=(PoolConf("main", 2), PoolConf("big-mem", 0)),
)


def keys(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_what_healing_relies_on_is_always_there() -> None:
    found = keys(slurm_conf.slurm_conf(CONF))
    assert found["KillWait"] == "120"
    assert found["JobRequeue"] == "1"
    assert int(found["MinJobAge"]) >= 600
    assert found["ReturnToService"] == "2"
    assert found["SlurmctldHost"] == "demo-slurmctld-0(demo-slurmctld)"


@pytest.mark.parametrize(("version", "auth"), [("22.05", "munge"), ("24.11", "slurm"), ("26.05", "slurm")])
def test_authentication_by_release(version: str, auth: str) -> None:
    conf = replace(CONF, version=version)
    found = keys(slurm_conf.slurm_conf(conf))
    assert found["AuthType"] == f"auth/{auth}"
    assert found["AuthAltTypes"] == "auth/jwt"
    assert ("CredType" in found) == (auth == "slurm")
    assert keys(slurm_conf.client_conf(conf))["AuthType"] == f"auth/{auth}"
    assert conf.uses_munge == (auth == "munge")


@pytest.mark.parametrize(
    ("version", "cgroups", "text"),
    [
        ("22.05", True, ""),
        ("22.05", False, ""),  # has no word for "none"; it finds the version by itself
        ("24.11", True, "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n"),
        ("24.11", False, "CgroupPlugin=disabled\n"),
        ("26.05", False, "CgroupPlugin=disabled\n"),
    ],
)
def test_cgroup_conf(version: str, cgroups: bool, text: str) -> None:
    conf = replace(CONF, version=version, cgroups=cgroups)
    assert slurm_conf.cgroup_conf(conf) == text
    tracking = keys(slurm_conf.slurm_conf(conf))["ProctrackType"]
    assert tracking == ("proctrack/cgroup" if cgroups else "proctrack/linuxproc")


def test_gres_lists_each_device_and_detects_nothing() -> None:
    assert slurm_conf.gres_conf(CONF) == "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n"
    assert slurm_conf.gres_conf(replace(CONF, pools=(PoolConf("cpu"),))) == "AutoDetect=off\n"


def test_partitions() -> None:
    assert "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n" in slurm_conf.slurm_conf(CONF)
    two = (PartitionConf("a", ("main", "big-mem"), True, "2-00:00:00"), PartitionConf("b", ("big-mem",)))
    text = slurm_conf.slurm_conf(replace(CONF, partitions=two))
    assert "NodeSet=pool_big_mem Feature=big-mem\n" in text
    assert "PartitionName=a Nodes=pool_main,pool_big_mem Default=YES MaxTime=2-00:00:00 State=UP\n" in text
    assert "PartitionName=b Nodes=pool_big_mem MaxTime=INFINITE State=UP\n" in text
    assert "Nodes=ALL" not in text


def test_node_conf_names_only_what_was_declared() -> None:
    assert slurm_conf.node_conf(PoolConf("main", 8)) == "Feature=main Gres=gpu:8"
    assert slurm_conf.node_conf(PoolConf("cpu", 0, 64, 1024)) == "Feature=cpu CPUs=64 RealMemory=1024"


def test_counted_nodes_are_believed_and_others_are_not() -> None:
    assert "config_overrides" not in slurm_conf.slurm_conf(CONF)
    assert "config_overrides" in slurm_conf.slurm_conf(replace(CONF, pools=(PoolConf("main", 2, cpus=8),)))


def test_a_requeued_job_keeps_its_log_unless_the_site_wants_otherwise() -> None:
    assert keys(slurm_conf.slurm_conf(CONF))["JobFileAppend"] == "1"
    other = slurm_conf.slurm_conf(replace(CONF, extra={"JobFileAppend": "0"}))
    assert keys(other)["JobFileAppend"] == "0"
    assert other.count("JobFileAppend=") == 1


def test_further_keys_are_added_and_replace_our_defaults() -> None:
    conf = replace(CONF, extra={"SlurmdTimeout": "300", "DefMemPerCPU": "2000", "LaunchParameters": '"a, b"'})
    slurm_conf.check(conf)
    text = slurm_conf.slurm_conf(conf)
    assert 'LaunchParameters="a, b"\n' in text
    assert "SlurmdTimeout=300\n" in text
    assert "DefMemPerCPU=2000\n" in text
    assert text.count("SlurmdTimeout=") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": {"killwait": "30"}}, "killwait, which the operator owns"),
        ({"extra": {"Prolog": ""}}, "config.slurm.Prolog"),
        ({"extra": {"Prolog": "/a\nKillWait=1"}}, "config.slurm.Prolog"),
        ({"extra": {"Bad Key": "1"}}, "Bad Key"),
        ({"extra": {"MailDomain": "x KillWait=5"}}, "config.slurm.MailDomain"),
        ({"extra": {"Prolog": "/a \\"}}, "config.slurm.Prolog"),
        ({"extra": {"Prolog": "/a\\"}}, "config.slurm.Prolog"),
        ({"extra": {"Prolog": "/a#b"}}, "config.slurm.Prolog"),
        ({"extra": {"Prolog": '"a" KillWait=5 "b"'}}, "config.slurm.Prolog"),
        ({"extra": {"Prolog": "/a", "prolog": "/b"}}, "a key twice"),
        ({"partitions": (PartitionConf("Default"),)}, "makes no queue"),
        ({"partitions": (PartitionConf("a", max_time="--:--"),)}, "maxTime"),
        ({"partitions": (PartitionConf("a", ("none",)),)}, "the pool none"),
        ({"partitions": (PartitionConf("a", default=True), PartitionConf("b", default=True))}, "a and b"),
        ({"partitions": (PartitionConf("a", max_time="1h State=DOWN"),)}, "maxTime"),
        ({"pools": (PoolConf("a", 2), PoolConf("b", 4))}, "same number of GPUs"),
    ],
)
def test_refusals_say_what_is_wrong(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        slurm_conf.check(replace(CONF, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["", "24", "24.11 ", "latest", "24.11\nX=1"])
def test_no_release(version: str) -> None:
    with pytest.raises(InvalidInput, match="no release of Slurm"):
        slurm_conf.release(version)


@pytest.mark.parametrize(
    ("key", "version", "wrong"),
    [
        ("SchedulerParameters", "22.05", ""),
        ("schedulerparameters", "26.05", ""),
        ("Epilog", "24.11", ""),
        ("MaxBatchRequeue", "24.11", ""),
        ("MaxBatchRequeue", "22.05", "no such key and would not start; Slurm 24.11 and 26.05 have it"),
        ("SalloccDefaultCommand", "24.11", "no such key"),
        ("Frobnicate", "24.11", "no such key and would not start; remove it"),
        ("PriorityWeigthAge", "24.11", "did you mean PriorityWeightAge?"),
        ("Whatever", "23.02", ""),  # nobody has measured that release
    ],
)
def test_keys_are_known_by_release(key: str, version: str, wrong: str) -> None:
    found = unknown_key(key, version)
    assert wrong in found
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_every_key_that_we_write_ourselves_is_known(version: str) -> None:
    known = keys_of(version)
    written = {
        line.partition("=")[0]
        for line in slurm_conf.slurm_conf(replace(CONF, version=version)).splitlines()
        if not line.startswith("#")
    }
    assert {key for key in written if key.lower() not in known} == set()
