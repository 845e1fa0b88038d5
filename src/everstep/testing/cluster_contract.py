"""What every Cluster, Remediations and LeaderLease must do; runs against the fakes and a real API server alike.

A subclass gives a world (``make_world``): the ports under test, and hands to put objects behind them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from everstep.core.cluster_state import (
    CLAIM_ANNOTATION,
    POOL_LABEL,
    SPARE_LABEL,
    SPARE_TAINT,
    NodeCondition,
    PodView,
)
from everstep.core.errors import Conflict, NotFound
from everstep.core.health import Fault, FaultClass, FirstAction, NodeReport, Severity, Verdict
from everstep.core.occurrences import Occurrence
from everstep.core.remediation_status import JobRecord, Remediation, Spec, Stage, Status, Step, StepName
from everstep.testing.kubernetes_world import KubernetesWorld, eventually, node_of

OTHER_TAINT = "example.com/other"


Test = Callable[[KubernetesWorld], Awaitable[None]]


class KubernetesContract(ABC):
    """Inherit, and override :meth:`make_world`."""

    @abstractmethod
    def make_world(self) -> AbstractAsyncContextManager[KubernetesWorld]: ...

    def check(self, test: Test) -> None:
        async def whole() -> None:
            async with self.make_world() as world:
                await test(world)

        asyncio.run(whole())

    # --- nodes ----------------------------------------------------------------------------------------------------

    def test_node_that_is_not_there_is_none(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            assert await world.cluster.node(world.prefix + "nobody") is None
            with pytest.raises(NotFound):
                await world.cluster.cordon(world.prefix + "nobody")

        self.check(test)

    def test_cordon_and_uncordon_may_be_repeated(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            for wanted, act in ((True, world.cluster.cordon), (False, world.cluster.uncordon)):
                await act(name)
                await act(name)

                async def as_wanted(wanted: bool = wanted) -> bool:
                    return (await node_of(world, name)).unschedulable is wanted

                await eventually(world, as_wanted, f"unschedulable={wanted}")

        self.check(test)

    def test_spare_is_claimed_by_one_only(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await spare(world)
            await world.cluster.claim_spare(name, "first")
            await world.cluster.claim_spare(name, "first")
            with pytest.raises(Conflict, match="first"):
                await world.cluster.claim_spare(name, "second")
            with pytest.raises(Conflict):
                await world.cluster.release_spare(name, "second")
            await world.cluster.release_spare(name, "first")
            await world.cluster.release_spare(name, "first")
            await world.cluster.claim_spare(name, "second")

        self.check(test)

    def test_node_in_service_is_no_spare(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            with pytest.raises(Conflict):
                await world.cluster.claim_spare(name, "first")

        self.check(test)

    def test_many_claims_at_once_have_one_winner(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await spare(world)
            claims = [world.cluster.claim_spare(name, f"claim-{n}") for n in range(8)]
            outcomes = await asyncio.gather(*claims, return_exceptions=True)
            assert outcomes.count(None) == 1
            assert all(isinstance(each, Conflict) for each in outcomes if each is not None)

        self.check(test)

    def test_claimed_spare_joins_and_keeps_what_is_not_ours(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await spare(world)
            with pytest.raises(Conflict):
                await world.cluster.join_pool(name, "main", "first")
            await world.cluster.claim_spare(name, "first")
            await world.cluster.cordon(name)
            with pytest.raises(Conflict):
                await world.cluster.join_pool(name, "main", "second")
            await world.cluster.join_pool(name, "main", "first")
            await world.cluster.join_pool(name, "main", "first")

            async def joined() -> bool:
                return (await node_of(world, name)).pool == "main"

            await eventually(world, joined, "in the pool")
            node = await node_of(world, name)
            assert SPARE_LABEL not in node.labels
            assert CLAIM_ANNOTATION not in node.annotations
            assert SPARE_TAINT not in node.taints
            assert OTHER_TAINT in node.taints
            assert not node.unschedulable

        self.check(test)

    def test_node_leaves_once_and_says_for_whom(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            await world.cluster.leave_pool(name, "first")
            await world.cluster.leave_pool(name, "second")

            async def left() -> bool:
                return (await node_of(world, name)).out_of_service == "first"

            await eventually(world, left, "out of service")
            assert POOL_LABEL not in (await node_of(world, name)).labels

        self.check(test)

    def test_spare_that_failed_its_checks_leaves_too(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await spare(world)
            await world.cluster.claim_spare(name, "first")
            await world.cluster.leave_pool(name, "first")

            async def left() -> bool:
                node = await node_of(world, name)
                return node.out_of_service == "first" and node.claimed_by is None and node.spare_for is None

            await eventually(world, left, "out of service")

        self.check(test)

    def test_pods_are_found_by_node_and_evicted_once(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            await world.add_pod(name, world.prefix + "pod")

            async def ours() -> list[PodView]:
                return [pod for pod in await world.cluster.pods_on(name) if pod.name == world.prefix + "pod"]

            await eventually(world, ours, "the pod is on the node")
            (pod,) = await ours()
            await world.cluster.evict(replace(pod, uid="00000000-0000-0000-0000-000000000000"))  # another of that name
            (still,) = await ours()
            assert not still.terminating
            await world.cluster.evict(pod)
            await world.cluster.evict(pod)

            async def leaving() -> bool:
                return all(each.terminating for each in await ours())

            await eventually(world, leaving, "the pod goes")

        self.check(test)

    def test_report_comes_with_its_heartbeat(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            said = NodeReport(name, Verdict.FAULTY, "boot-1", faults=(a_fault(),), reason="a GPU is gone")
            await world.report(said)

            async def told() -> bool:
                found = (await world.cluster.reports()).get(name)
                return found is not None and found.heartbeat is not None

            await eventually(world, told, "the report")
            found = (await world.cluster.reports())[name]
            assert (found.verdict, found.boot_id, found.faults) == (said.verdict, said.boot_id, said.faults)

        self.check(test)

    def test_one_condition_of_a_node_is_written_and_the_others_stay(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            uid = (await node_of(world, name)).uid
            other = NodeCondition("Other", "True", "Said", "by somebody else", 1_790_000_000.0)
            first = NodeCondition("EverstepHealthy", "True", "NoFault", "2 GPUs answer", 1_790_000_000.0)
            second = replace(first, status="False", reason="Xid79", message="a GPU is gone", since=1_790_000_060.0)
            for condition in (other, first, second):
                await world.cluster.set_condition(name, uid, condition)

            async def shown() -> bool:
                return (await node_of(world, name)).condition("EverstepHealthy") == second

            await eventually(world, shown, "the condition")
            assert (await node_of(world, name)).condition("Other") == other
            with pytest.raises(Conflict):
                await world.cluster.set_condition(name, "another-uid", first)
            with pytest.raises(NotFound):
                await world.cluster.set_condition(world.prefix + "nobody", uid, first)

        self.check(test)

    def test_a_node_is_told_the_history_of_its_gpus(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            await world.report(NodeReport(name, Verdict.FAULTY, "boot-1", faults=(a_fault(),), reason="a GPU is gone"))
            past = (Occurrence("serial-1", "xid:48", 1_796_000_000.25, "boot-0", ("ada",)),)
            for inherited in (past, past, ()):
                await world.cluster.tell_history(name, inherited)

                async def told(inherited: tuple[Occurrence, ...] = inherited) -> bool:
                    found = (await world.cluster.reports()).get(name)
                    return found is not None and found.inherited == inherited

                await eventually(world, told, f"{len(inherited)} episodes")
            assert (await world.cluster.reports())[name].faults == (a_fault(),), "the rest is the agent's"
            with pytest.raises(NotFound):
                await world.cluster.tell_history(world.prefix + "nobody", past)

        self.check(test)

    def test_event_about_nothing_is_no_error(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = await in_service(world)
            await world.cluster.event("Node", name, "Detected", "a GPU is gone")
            await world.cluster.event("Node", name, "Detected", "a GPU is gone")
            await world.cluster.event("Node", world.prefix + "nobody", "Detected", "a GPU is gone")

        self.check(test)

    # --- incidents --------------------------------------------------------------------------------------------------

    def test_incident_is_opened_once_and_read_at_once(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            me = await opened(world)
            assert (me.spec, me.status) == (a_spec(), Status())
            with pytest.raises(Conflict):
                await world.remediations.create(me.name, a_spec())

        self.check(test)

    def test_status_is_written_under_the_version_that_was_read(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            me = await opened(world)
            status = a_status()
            await world.remediations.update_status(me, status)
            after = await found(world, me.name)
            assert after.status == status
            with pytest.raises(Conflict):
                await world.remediations.update_status(me, Status(Stage.RESOLVED))
            await world.remediations.update_status(after, replace(status, reason="and on"))
            assert (await found(world, me.name)).status.reason == "and on"

        self.check(test)

    # --- leadership ---------------------------------------------------------------------------------------------------

    def test_one_holds_the_lease_until_its_time_is_over(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = world.prefix + "lease"
            one, other = world.lease(name), world.lease(name)
            assert await one.hold("one", 2.0)
            assert not await other.hold("other", 2.0)
            await world.pause(1.5)
            assert await one.hold("one", 2.0)
            await world.pause(1.5)
            assert not await other.hold("other", 2.0)  # renewed meanwhile
            await world.pause(2.2)
            assert await other.hold("other", 2.0)
            assert not await one.hold("one", 2.0)
            await one.release("one")  # not its own any more
            assert not await one.hold("one", 2.0)

        self.check(test)

    def test_lease_that_was_given_up_is_free_at_once(self) -> None:
        async def test(world: KubernetesWorld) -> None:
            name = world.prefix + "lease"
            one, other = world.lease(name), world.lease(name)
            assert await one.hold("one", 60.0)
            await one.release("one")
            assert await other.hold("other", 60.0)

        self.check(test)


async def in_service(world: KubernetesWorld) -> str:
    name = world.prefix + "node"
    await world.add_node(name, {POOL_LABEL: "main"})
    await _known(world, name)
    return name


async def spare(world: KubernetesWorld) -> str:
    name = world.prefix + "spare"
    await world.add_node(name, {SPARE_LABEL: "main"}, (SPARE_TAINT, OTHER_TAINT))
    await _known(world, name)
    return name


async def _known(world: KubernetesWorld, name: str) -> None:
    async def there() -> bool:
        return await world.cluster.node(name) is not None

    await eventually(world, there, f"node {name} is known")


async def opened(world: KubernetesWorld) -> Remediation:
    name = world.prefix + "incident"
    await world.remediations.create(name, a_spec())
    return await found(world, name)


async def found(world: KubernetesWorld, name: str) -> Remediation:
    return next(each for each in await world.remediations.list() if each.name == name)


def a_fault() -> Fault:
    return Fault(
        key="xid:79@serial-1",
        kind="xid",
        code="79",
        fault_class=FaultClass.HARDWARE,
        severity=Severity.CRITICAL,
        action=FirstAction.REPLACE_NODE,
        reason="the GPU fell off the bus",
        pci="0000:0f:00",
        gpu_index=0,
        gpu_serial="serial-1",
        line="NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        first_seen=1_796_000_000.25,
        last_seen=1_796_000_001.5,
        boot_id="boot-1",
    )


def a_spec() -> Spec:
    return Spec("gpu-1", "uid-1", "boot-1", "main", "gpu-1", 2, (a_fault(),))


def a_status() -> Status:
    job = JobRecord("7", "team/slurm", "ada", "train", 0, 0, 0, ("gpu-1", "gpu-2"), 4, asked_at=1_796_000_002.125)
    step = Step(StepName.DETECTED, 1_796_000_000.25, "the GPU fell off the bus")
    return Status(
        Stage.ISOLATING, 1_796_000_002.0, "isolating", admitted_at=1_796_000_001.0, steps=(step,), jobs=(job,)
    )
