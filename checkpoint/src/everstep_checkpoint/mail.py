"""The side channel over files in the run's directory, for clusters where ranks cannot connect to each other.

Each message is one file that appears by rename, numbered by its sender: `<rank>-up-<n>` to rank 0, `<rank>-down-<n>`
from it. The folder is readable by its owner only, which is all the proof of identity there is. On a network file system
that caches names a message takes as long as that cache lives (3-60 s on NFS by default).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

Message = dict[str, Any]
_NAME = re.compile(r"(\d+)-(up|down)-(\d+)")


def mailbox(own: Path, token: str) -> Path:
    """The folder for the messages of one launch."""
    return own / f"mail-{hashlib.sha256(token.encode()).hexdigest()[:16]}"


def waiting(folder: Path) -> set[int]:
    """Ranks that have written to rank 0 in this folder. Raises OSError."""
    return {int(m[1]) for name in os.listdir(folder) if (m := _NAME.fullmatch(name)) and m[2] == "up"}


class MailLink:
    """One rank's messages to and from rank 0; the same calls as a `Link`, polled instead of selected."""

    def __init__(self, folder: Path, rank: int, leader: bool) -> None:
        self._folder, self._rank = folder, rank
        self._out, self._in = ("down", "up") if leader else ("up", "down")
        self._sent = self._read = 0
        self._queue: list[Message] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def has_output(self) -> bool:
        return bool(self._queue)

    def send(self, message: Message) -> None:
        self._queue.append(message)

    def flush(self) -> None:
        """Write what is queued. Raises OSError."""
        while self._queue:
            name = f"{self._rank}-{self._out}-{self._sent}"
            temporary = self._folder / f".{name}"
            temporary.write_text(json.dumps(self._queue[0]))
            os.rename(temporary, self._folder / name)
            self._sent += 1
            del self._queue[0]

    def receive(self) -> list[Message]:
        """Every message that has appeared, in order; each is removed as it is read. Raises OSError."""
        present, messages = set(os.listdir(self._folder)), []
        while (name := f"{self._rank}-{self._in}-{self._read}") in present:
            messages.append(json.loads((self._folder / name).read_text()))
            (self._folder / name).unlink()
            self._read += 1
        return messages

    def close(self) -> None:
        """Nothing is held open."""
