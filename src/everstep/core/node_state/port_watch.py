"""When a port of the fabric that is down is a fault: not the spare one, not at boot, not for a moment.

Times are seconds since boot. The windows are those of gpud's InfiniBand component (down 4 minutes: drop; down 25 s and
back, three times: flap; a drop still shows 10 minutes after), the flap's look-back of 6 hours and the grace of half an
hour after boot are OCI's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.core.health import Evidence

DROP_AFTER = 240.0
FLAP_AFTER = 25.0
FLAPS = 3
FLAP_WINDOW = 6 * 3600.0
DROP_SHOWN = 600.0
BOOT_GRACE = 1800.0


@dataclass(frozen=True, slots=True)
class PortHistory:
    """What is known of one port.

    Attributes:
        in_use: seen up once, or named as one that must be up. A port that is neither is spare, and never a fault.
        seen_up: whether it was up in this boot, as far as anybody saw.
        down_since: since when it is down; None while it is up.
        flaps: ends of the times that it was down for long enough to count, the last six hours only.
        dropped_until: until when a drop that is over still shows: one that is forgotten at once is seen by nobody.
        words: what the driver said last.
    """

    in_use: bool
    seen_up: bool = False
    down_since: float | None = None
    flaps: tuple[float, ...] = ()
    dropped_until: float = 0.0
    words: str = ""


def with_port_reading(before: PortHistory, *, up: bool, words: str, now: float) -> PortHistory:
    """The history after one look at the port.

    Args:
        words: state as the driver prints it, for people.
        now: seconds since boot.
    """
    flaps = tuple(end for end in before.flaps if now - end < FLAP_WINDOW)
    if not up:
        since = now if before.down_since is None and before.in_use else before.down_since
        return replace(before, down_since=since, flaps=flaps, words=words)
    until = before.dropped_until
    if before.down_since is not None:
        length = now - before.down_since
        if length >= FLAP_AFTER and before.down_since >= BOOT_GRACE:
            flaps = (*flaps, now)
        if is_dropped(before, now):
            until = now + DROP_SHOWN
    return replace(before, in_use=True, seen_up=True, down_since=None, flaps=flaps, dropped_until=until, words=words)


def is_dropped(history: PortHistory, now: float) -> bool:
    """Whether the port is down now and has been for too long."""
    if not history.in_use or history.down_since is None or now - history.down_since < DROP_AFTER:
        return False
    return history.seen_up or now >= BOOT_GRACE


def port_evidence(port: str, history: PortHistory, now: float) -> list[Evidence]:
    """What the history of ``port`` (``mlx5_0/1``) shows now."""
    found = []
    if is_dropped(history, now):
        down = now - (history.down_since or now)
        text = f"port {port} has been down for {down:.0f} s: {history.words}"
        found.append(Evidence(kind="ib", code="port_drop", subject=port, line=text))
    elif now < history.dropped_until:
        text = f"port {port} was down for {DROP_AFTER:.0f} s or more and is up again: {history.words}"
        found.append(Evidence(kind="ib", code="port_drop", subject=port, line=text))
    if len(history.flaps) >= FLAPS:
        text = f"port {port} went down for {FLAP_AFTER:.0f} s or more {len(history.flaps)} times in 6 h"
        found.append(Evidence(kind="ib", code="port_flap", subject=port, line=text))
    return found
