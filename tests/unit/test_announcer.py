"""Notices to people: always an Event on what they are about, whatever else is configured."""

from __future__ import annotations

import asyncio

import pytest

from everstep.adapters.notify.announcer import Announcer
from everstep.ports import Notice


@pytest.mark.parametrize(
    ("notice", "about"),
    [
        (Notice("gpu-1-xid-79-1", "gpu-1", "Node gpu-1 failed", "XID 79"), ("Remediation", "gpu-1-xid-79-1")),
        (Notice("", "gpu-1", "Job 7 broke", "XID 31", "ada", "7", "job-7-1"), ("FleetIncident", "job-7-1")),
    ],
)
def test_a_notice_is_an_event_on_what_it_is_about(notice: Notice, about: tuple[str, str]) -> None:
    events: list[tuple[str, ...]] = []

    async def event(*said: str) -> None:
        events.append(said)

    asyncio.run(Announcer(event, None).notify(notice))
    to = " (to ada)" if notice.user else ""
    assert events == [(*about, "Notice", f"{notice.title}{to}: {notice.text}")]
