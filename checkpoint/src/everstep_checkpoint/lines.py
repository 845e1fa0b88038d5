"""A conversation with one peer that outlives the connection it began on.

A switch that reboots, a gateway that moves: for some seconds packets vanish, and an idle TCP connection does not live
through that while both processes do. The next connection begins where the last one ended: each side says how many
messages it has heard, and the other says again what is missing.
"""

from __future__ import annotations

import errno
from collections import deque

from .wire import Link, Message

_REMEMBERED = 1024  # messages; a save takes three to six, and none is begun with a peer that is away


class Line:
    """The calls of a `Link`, over one `Link` after another; without one, messages wait for the next."""

    def __init__(self, session: str) -> None:
        self.session = session  # names the peer's process: another process of the same rank is another conversation
        self.heard = 0
        self.link: Link | None = None
        self._said: deque[Message] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def send(self, message: Message) -> None:
        self._said.append(message)
        self._count += 1
        if self.link is not None:
            self.link.send(message)

    @property
    def has_output(self) -> bool:
        return self.link is not None and self.link.has_output

    def flush(self) -> None:
        """Write what the kernel takes now. Raises OSError when the connection is broken."""
        if self.link is not None:
            self.link.flush()

    def receive(self) -> list[Message]:
        """Every whole message that arrived. Raises OSError when the connection is broken."""
        messages = self.link.receive() if self.link is not None else []
        self.heard += len(messages)
        return messages

    def missed(self, heard: int) -> list[Message]:
        """What a peer that has heard so many messages has missed. Raises ConnectionAbortedError if not all is known."""
        missing = self._count - heard
        if not 0 <= missing <= len(self._said):
            raise ConnectionAbortedError(errno.EPROTO, "the peer has missed more than can be said again")
        return list(self._said)[len(self._said) - missing :]

    def attach(self, link: Link, missed: list[Message]) -> None:
        """Go on over `link`, and begin with what was missed."""
        self.cut()
        self.link = link
        for message in missed:
            link.send(message)

    def cut(self) -> None:
        """Give the connection up, if there is one; the conversation may go on over another."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def close(self) -> None:
        self.cut()
