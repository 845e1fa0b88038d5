"""When a kubelet is told once more of a worker that it has not begun to start.

A kubelet can learn of a pod before its API server knows that the pod is on the kubelet's node. Its question for the
pod's volume claim is refused then ("no relationship found between node and this object"), and the kubelet puts the pod
off for 10 to 15 s (pod_workers.go: backOffPeriod, with jitter). Any change of the pod has it try again at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from everstep.adapters.kube.store import Key
from everstep.apps.slurm_operator.watched import SlurmPod

# Seconds after a worker was seen on its node without an address, which a kubelet gives it in half a second. No more
# often: what lasts is not this fault.
_AFTER = (1.0, 2.0, 4.0)


class Kubelets:
    """Remembers since when each worker waits and how often its kubelet was told; forgotten with the process."""

    def __init__(self) -> None:
        self._waiting: dict[Key, dict[str, tuple[float, int]]] = {}

    def to_tell(self, cluster: Key, pods: Iterable[SlurmPod], now: float) -> tuple[list[str], float | None]:
        """The pods to change now, and in how many seconds to ask again; None when nothing will be due by itself."""
        before = self._waiting.pop(cluster, {})
        due: list[str] = []
        waiting: dict[str, tuple[float, int]] = {}
        for pod in pods:
            if pod.role.startswith("worker-") and pod.node and not pod.address and not pod.leaving:
                since, told = before.get(pod.name, (now, 0))
                if told < len(_AFTER) and now - since >= _AFTER[told]:
                    due.append(pod.name)
                    told += 1
                waiting[pod.name] = (since, told)
        if waiting:
            self._waiting[cluster] = waiting
        nexts = [since + _AFTER[told] - now for since, told in waiting.values() if told < len(_AFTER)]
        return due, max(0.05, min(nexts)) if nexts else None

    def forget(self, cluster: Key) -> None:
        self._waiting.pop(cluster, None)
