"""Notices to people: always a Kubernetes Event on what they are about, and every Apprise URL that is configured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from everstep.core.errors import InvalidInput, Unreachable
from everstep.ports import Notice

SECONDS = 20.0  # for all URLs together; they are sent side by side


class Announcer:
    """Implements :class:`everstep.ports.Notifier`.

    Args:
        event: ``(kind, name, reason, message)`` of a Kubernetes Event.
        urls_file: one Apprise URL a line (https://github.com/caronc/apprise/wiki), ``#`` comments; read at each
            notice, because mounted secrets are renewed in place. URLs hold credentials and are never logged.
    """

    def __init__(self, event: Callable[[str, str, str, str], Awaitable[None]], urls_file: Path | None) -> None:
        self._event = event
        self._urls_file = urls_file

    async def notify(self, notice: Notice) -> None:
        """Raises Unreachable when any way failed, InvalidInput for a URL that Apprise does not know."""
        to = f" (to {notice.user})" if notice.user else ""
        kind = "FleetIncident" if notice.fleet_incident else "Remediation"
        await self._event(
            kind, notice.fleet_incident or notice.remediation, "Notice", f"{notice.title}{to}: {notice.text}"
        )
        urls = self._urls()
        if not urls:
            return
        try:
            async with asyncio.timeout(SECONDS):
                failed = await asyncio.gather(*(_send(url, notice) for url in urls))
        except TimeoutError as late:
            raise Unreachable(f"not every notification service answered within {SECONDS:.0f} s") from late
        if names := sorted({name for name in failed if name}):
            raise Unreachable(f"notification by {', '.join(names)} failed")

    def _urls(self) -> list[str]:
        if self._urls_file is None:
            return []
        try:
            lines = self._urls_file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise Unreachable(f"the list of notification services cannot be read: {type(error).__name__}") from None
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


async def _send(url: str, notice: Notice) -> str:
    """The service's name when it failed, "" when it was delivered."""
    import apprise  # noqa: PLC0415  # 40 MB that a controller without notification services does not need

    name = urlsplit(url).scheme or "unknown"
    sender = apprise.Apprise()
    if not sender.add(url):
        raise InvalidInput(f"a notification URL of kind {name!r} is not understood by Apprise")
    return "" if await sender.async_notify(title=notice.title, body=notice.text) else name
