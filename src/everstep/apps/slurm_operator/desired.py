"""What a SlurmCluster asks for, checked, and the names of everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.api.slurm_cluster import NodePool, ProcessTracking, SlurmClusterSpec
from everstep.core import slurm_accounts, slurm_conf
from everstep.core.cluster_state import SLURM_CLUSTER_LABEL
from everstep.core.errors import InvalidInput
from everstep.core.slurm_accounts import Account
from everstep.core.slurm_conf import PartitionConf, PoolConf, SlurmConf

CLUSTER_LABEL = SLURM_CLUSTER_LABEL
ROLE_LABEL = "everstep.io/slurm-role"
API_VERSION = "everstep.io/v1alpha1"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator itself was told: where images come from, who may use gateways, DNS domain of the cluster."""

    slurm_image: str
    gateway_callers: tuple[str, ...]
    cluster_domain: str = "cluster.local"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One SlurmCluster as it was read."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: SlurmClusterSpec

    def part(self, part: str) -> str:
        """Name of the cluster's object for a part: `demo-login`."""
        return f"{self.name}-{part}"

    def labels(self, role: str | None = None) -> dict[str, str]:
        """Labels of everything that belongs to the cluster, or of one role's pods."""
        return {CLUSTER_LABEL: self.name, **({ROLE_LABEL: role} if role else {})}

    def pool_conf(self, pool: NodePool) -> PoolConf:
        """The pool as Slurm's configuration needs it."""
        return PoolConf(pool.name, pool.gpus.count if pool.gpus else 0, pool.cpus, pool.memory_mib)

    def slurm_conf(self) -> SlurmConf:
        """Slurm's configuration. Raises InvalidInput with one sentence when the object asks for what cannot be."""
        spec = self.spec
        conf = SlurmConf(
            cluster=self.name,
            version=spec.slurm_version,
            controller_host=f"{self.part('slurmctld')}-0",
            controller_address=self.part("slurmctld"),
            pools=tuple(map(self.pool_conf, spec.node_pools)),
            partitions=tuple(
                PartitionConf(p.name, tuple(p.node_pools), p.default or len(spec.partitions) == 1, p.max_time)
                for p in spec.partitions
            ),
            cgroups=spec.config.process_tracking is ProcessTracking.CGROUP,
            extra=spec.config.slurm,
        )
        slurm_conf.check(conf)
        return conf

    def accounts(self) -> tuple[Account, ...]:
        """The users. Raises InvalidInput."""
        accounts = tuple(Account(u.name, u.uid, u.gid, tuple(u.ssh_keys)) for u in self.spec.users)
        slurm_accounts.check(accounts)
        return accounts

    def check(self) -> None:
        """Raises InvalidInput with the first thing that cannot be done as asked."""
        if not self.spec.node_pools:
            raise InvalidInput("nodePools is empty; name at least one pool")
        for pool in self.spec.node_pools:
            if not pool.selector.match_labels:
                raise InvalidInput(f"pool {pool.name}: selector.matchLabels is empty and would take every node")
        self.slurm_conf()
        self.accounts()

    def image(self, settings: Settings) -> str:
        """Image of every Slurm daemon."""
        return self.spec.image or f"{settings.slurm_image}:{self.spec.slurm_version}"

    def owner(self) -> dict[str, object]:
        """Reference that makes Kubernetes delete an object together with the SlurmCluster."""
        return {
            "apiVersion": API_VERSION,
            "kind": "SlurmCluster",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
