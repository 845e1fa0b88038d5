"""The text of Slurm's configuration files, from 22.05 to 26.05, for workers that register as dynamic nodes.

Where a value is not Slurm's default, the line above it says why; measured means on 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.core.errors import InvalidInput
from everstep.core.slurm_keys import unknown_key

CONTROLLER_PORT = 6817
WORKER_PORT = 6818
# Seconds between SIGTERM and SIGKILL when a job is requeued: the time in which it may save.
KILL_WAIT_SECONDS = 120
CONFIG_FOLDER = "/etc/slurm"
JWT_KEY = f"{CONFIG_FOLDER}/jwt.key"
STATE_FOLDER = "/var/spool/slurmctld"
SLURM_USER = "slurm"
# Slurm keeps bitmaps of this length; more nodes than these cannot register.
_MAX_NODES = 8192

# Keys that follow from the SlurmCluster object, or on which healing relies. Compared without regard to case.
OWNED_KEYS = frozenset(
    """AuthAltParameters AuthAltTypes AuthInfo AuthType ClusterName CredType GresTypes Include JobRequeue KillWait
    MaxNodeCount MinJobAge NodeName NodeSet PartitionName ProctrackType ReturnToService SelectType SlurmctldHost
    SlurmctldParameters SlurmctldPort SlurmdParameters SlurmdPort SlurmdSpoolDir SlurmdUser SlurmUser StateSaveLocation
    DownNodes FrontendName BackupController ControlMachine ControlAddr SlurmctldPidFile SlurmdPidFile""".lower().split()
)
# One word, or text in double quotes. Slurm refuses the whole file for a second word, `#` starts a comment, and a
# backslash at the end joins the next line to this one: slurmctld would not start, or drop what follows.
_VALUE = re.compile(r'"[^"#\\]+"|[^\s"#\\]+')
_TIME = re.compile(r"(?i:INFINITE|UNLIMITED)|(\d+-)?\d+(:\d+){0,2}")


@dataclass(frozen=True, slots=True)
class PoolConf:
    """One pool: GPUs of each node; ``cpus`` and ``memory_mib`` where Slurm shall not count what it finds."""

    name: str
    gpus: int = 0
    cpus: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionConf:
    """One partition over the named pools; no pools means all nodes."""

    name: str
    pools: tuple[str, ...] = ()
    default: bool = False
    max_time: str = "INFINITE"


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """What Slurm's configuration depends on.

    Attributes:
        version: ``22.05``, ``24.11`` or ``26.05``.
        controller_host: hostname of the controller's pod; slurmctld compares it with its own.
        controller_address: name that every pod resolves to the controller.
        cgroups: track processes by cgroups; else by /proc, which can lose orphans.
        extra: further keys, as the user gave them.
    """

    cluster: str
    version: str
    controller_host: str
    controller_address: str
    pools: tuple[PoolConf, ...]
    partitions: tuple[PartitionConf, ...] = ()
    cgroups: bool = True
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def uses_munge(self) -> bool:
        """Slurm's own authentication exists from 23.11 on; before, munge is the only one."""
        return release(self.version) < (23, 11)


def release(version: str) -> tuple[int, int]:
    """``24.11`` as (24, 11). Raises InvalidInput."""
    match = re.fullmatch(r"(\d{2})\.(\d{2})(\.\d+)?", version)
    if match is None:
        raise InvalidInput(f"slurmVersion {version!r} is no release of Slurm such as 24.11")
    return int(match[1]), int(match[2])


def check(conf: SlurmConf) -> None:
    """Raises InvalidInput with one sentence for a configuration that Slurm would refuse or that healing cannot use."""
    _check_keys(conf.extra, conf.version)
    _check_partitions(conf)
    counts = {pool.gpus for pool in conf.pools if pool.gpus}
    if len(counts) > 1:
        # gres.conf is one file for all dynamic nodes, and slurmd insists that each device file in it exists.
        raise InvalidInput("all pools with GPUs must have the same number of GPUs a node; make another SlurmCluster")


def _check_keys(extra: Mapping[str, str], version: str) -> None:
    owned = sorted(key for key in extra if key.lower() in OWNED_KEYS)
    if owned:
        raise InvalidInput(f"config.slurm sets {', '.join(owned)}, which the operator owns; remove it")
    if len({key.lower() for key in extra}) < len(extra):
        raise InvalidInput("config.slurm names a key twice; Slurm does not tell capital letters from small ones")
    for key, value in extra.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key) or not value.isprintable() or not _VALUE.fullmatch(value):
            raise InvalidInput(
                f"config.slurm.{key} must be a key of slurm.conf with a value of one word, or of several in double "
                "quotes, without # and backslashes"
            )
        if wrong := unknown_key(key, version):
            raise InvalidInput(wrong)


def _check_partitions(conf: SlurmConf) -> None:
    pools = {pool.name for pool in conf.pools}
    for partition in conf.partitions:
        if unknown := sorted(set(partition.pools) - pools):
            raise InvalidInput(f"partition {partition.name} names the pool {unknown[0]}, which is not in nodePools")
        if partition.name.lower() == "default":
            raise InvalidInput(f"partition {partition.name}: Slurm makes no queue of this name; choose another")
        if not _TIME.fullmatch(partition.max_time):
            raise InvalidInput(f"partition {partition.name}: maxTime {partition.max_time!r} is no time of Slurm's")
    defaults = [partition.name for partition in conf.partitions if partition.default]
    if len(defaults) > 1:
        raise InvalidInput(f"partitions {' and '.join(defaults)} are both the default; there can be one")


def slurm_conf(conf: SlurmConf) -> str:
    """slurm.conf of the controller; workers fetch it from there."""
    counted = any(pool.cpus or pool.memory_mib for pool in conf.pools)
    lines = [
        f"ClusterName={conf.cluster}",
        f"SlurmctldHost={conf.controller_host}({conf.controller_address})",
        f"SlurmUser={SLURM_USER}",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={WORKER_PORT}",
        *_authentication(conf),
        f"StateSaveLocation={STATE_FOLDER}",
        "SlurmdSpoolDir=/var/spool/slurmd",
        f"ProctrackType=proctrack/{'cgroup' if conf.cgroups else 'linuxproc'}",
        "SelectType=select/cons_tres",
        "GresTypes=gpu",
        "SlurmctldParameters=enable_configless",
        f"MaxNodeCount={_MAX_NODES}",
        "# Dynamic nodes cannot pass messages on to each other: the controller speaks to each.",
        "TreeWidth=65533",
        "# A requeued job has this long to save; healing depends on it.",
        f"KillWait={KILL_WAIT_SECONDS}",
        "JobRequeue=1",
        "# A finished job stays visible long enough to be requeued or told about.",
        "MinJobAge=600",
        "# A node that was down comes back when it registers; a drain stays.",
        "ReturnToService=2",
        *(["# Counted as declared in the SlurmCluster.", "SlurmdParameters=config_overrides"] if counted else []),
        *_replaceable(conf),
        *(f"{key}={value}" for key, value in sorted(conf.extra.items())),
        *(f"NodeSet={_node_set(pool.name)} Feature={pool.name}" for pool in conf.pools),
        *map(_partition, conf.partitions or (PartitionConf("main", default=True),)),
    ]
    return "\n".join(lines) + "\n"


def _authentication(conf: SlurmConf) -> list[str]:
    own = [] if conf.uses_munge else ["AuthType=auth/slurm", "CredType=cred/slurm", "AuthInfo=use_client_ids"]
    return [
        *(own or ["AuthType=auth/munge"]),
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={JWT_KEY}",
    ]


def _replaceable(conf: SlurmConf) -> list[str]:
    """Defaults of ours that the user may replace."""
    ours = {
        "SelectTypeParameters": "CR_Core",
        # The image has no mail program, and slurmctld complains about a missing one.
        "MailProg": "/bin/true",
        # A requeued job goes on writing to its log. By default Slurm empties it, and with it what the owner was told.
        "JobFileAppend": "1",
        # A dead node is noticed by Slurm itself after a minute, not five.
        "SlurmdTimeout": "60",
        # Jobs start at once when a node registers or a job is released, not at the next full minute.
        "SchedulerParameters": "sched_interval=2,batch_sched_delay=1,bf_interval=10",
    }
    given = {key.lower() for key in conf.extra}
    return [f"{key}={value}" for key, value in ours.items() if key.lower() not in given]


def _node_set(pool: str) -> str:
    return f"pool_{pool.replace('-', '_')}"


def _partition(partition: PartitionConf) -> str:
    nodes = ",".join(map(_node_set, partition.pools)) or "ALL"
    default = " Default=YES" if partition.default else ""
    return f"PartitionName={partition.name} Nodes={nodes}{default} MaxTime={partition.max_time} State=UP"


def gres_conf(conf: SlurmConf) -> str:
    """gres.conf: the device files are the whole truth, nothing is detected."""
    gpus = max((pool.gpus for pool in conf.pools), default=0)
    return "AutoDetect=off\n" + (f"Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n" if gpus else "")


def cgroup_conf(conf: SlurmConf) -> str:
    """cgroup.conf. Where cgroups are not used, slurmd must not look for them (a key of 24.05 and later)."""
    if conf.cgroups:
        return "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n" if release(conf.version) >= (23, 2) else ""
    return "CgroupPlugin=disabled\n" if release(conf.version) >= (24, 5) else ""


def client_conf(conf: SlurmConf) -> str:
    """slurm.conf of a client that has a token and nothing else: no key, no munge."""
    return "\n".join(
        [
            f"ClusterName={conf.cluster}",
            f"SlurmctldHost={conf.controller_host}({conf.controller_address})",
            f"SlurmctldPort={CONTROLLER_PORT}",
            f"AuthType=auth/{'munge' if conf.uses_munge else 'slurm'}",
            "AuthAltTypes=auth/jwt",
            "",
        ]
    )


def node_conf(pool: PoolConf) -> str:
    """``slurmd --conf``: what a node of the pool says about itself when it registers."""
    words = [f"Feature={pool.name}"]
    if pool.gpus:
        words.append(f"Gres=gpu:{pool.gpus}")
    if pool.cpus:
        words.append(f"CPUs={pool.cpus}")
    if pool.memory_mib:
        words.append(f"RealMemory={pool.memory_mib}")
    return " ".join(words)
