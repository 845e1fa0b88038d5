"""The work queue, the leader's fence, and the order of the steps."""

from __future__ import annotations

import asyncio

from everstep.core.remediation_status import Step, StepName, order_violations
from everstep.engine.leader import LEASE_SECONDS, Leadership
from everstep.engine.queue import BACKOFF_MOST, WorkQueue
from everstep.testing.storage import FakeLease
from everstep.testing.virtual_clock import VirtualClock


def test_a_name_waits_once_and_is_never_in_two_hands() -> None:
    async def use() -> None:
        queue = WorkQueue(VirtualClock())
        for name in ("a", "a", "b"):
            queue.add(name)
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        queue.add("a")  # while somebody has it
        third = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not third.done()
        queue.done("a")
        assert await third == "a"

    asyncio.run(use())


def test_a_delayed_name_comes_when_its_time_has_come() -> None:
    async def use() -> None:
        clock = VirtualClock()
        queue = WorkQueue(clock)
        queue.add_after("late", 5.0)
        queue.add_after("late", 2.0)
        queue.add_after("late", 9.0)
        waiting = asyncio.create_task(queue.get())
        for seconds, there in ((1.9, False), (2.0, True)):
            clock.move_to(1_000_000.0 + seconds)
            for _ in range(10):
                await asyncio.sleep(0)
            assert waiting.done() is there

    asyncio.run(use())


def test_failures_in_a_row_back_off_and_a_success_forgets_them() -> None:
    queue = WorkQueue(VirtualClock())
    delays = [queue.failed("x") for _ in range(12)]
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert delays[-1] == BACKOFF_MOST
    queue.succeeded("x")
    assert queue.failed("x") == 0.05


def test_a_leader_that_cannot_renew_stops_before_its_lease_is_over() -> None:
    async def use() -> None:
        clock = VirtualClock()
        lease = FakeLease(clock.now)
        old, new = Leadership(lease, clock, "old"), Leadership(lease, clock, "new")
        await old.renew()
        await new.renew()
        assert old.leading
        assert not new.leading
        lease.reachable = False
        clock.move_to(clock.now() + LEASE_SECONDS - 0.5)
        await old.renew()
        assert not old.leading, "it fences itself although nobody has told it anything"
        lease.reachable = True
        await new.renew()
        assert not new.leading, "the old one's time is not over yet"
        clock.move_to(clock.now() + 1.0)
        await new.renew()
        assert new.leading
        await old.renew()
        assert not old.leading

    asyncio.run(use())


def test_two_leaderships_never_overlap_whatever_the_pauses() -> None:
    async def use() -> None:
        clock = VirtualClock()
        lease = FakeLease(clock.now)
        both = [Leadership(lease, clock, name) for name in ("a", "b")]
        pauses = (0.3, 1.9, 4.9, 5.1, 6.5, 0.1, 2.0, 12.0)
        for number in range(200):
            clock.move_to(clock.now() + pauses[number * 5 % len(pauses)])
            await both[number * 7 % 3 % 2].renew()
            assert sum(each.leading for each in both) <= 1

    asyncio.run(use())


def test_the_declared_order_is_checked_pair_by_pair() -> None:
    def steps(*pairs: tuple[StepName, float]) -> list[Step]:
        return [Step(name, at, "") for name, at in pairs]

    right = steps((StepName.DETECTED, 1), (StepName.CORDONED, 2), (StepName.ISOLATED, 2), (StepName.SIGNALLED, 3))
    assert not order_violations(right)
    wrong = steps((StepName.DETECTED, 5), (StepName.ISOLATED, 4), (StepName.SIGNALLED, 3))
    assert len(order_violations(wrong)) == 3
    assert "twice" in order_violations(steps((StepName.DETECTED, 1), (StepName.DETECTED, 1)))[0]
