"""Rank 0's connections (Hub) and every other rank's single one (Spoke), over TCP or, where that fails, over files."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import selectors
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from .durable import replace_file
from .errors import RendezvousError
from .mail import MailLink, mailbox, waiting
from .wire import Link, Message, join, new_nonce, own_addresses, proof
from .world import World

log = logging.getLogger("everstep_checkpoint")

_HANDSHAKE = 10.0  # seconds a stranger may take to prove itself
_TCP_PATIENCE = 20.0  # seconds of refused connections before a rank writes to rank 0 by file


def address_file(own: Path, token: str) -> Path:
    """Where rank 0 writes its addresses and port, for when the launcher's host name or port does not do."""
    return own / f"hub-{hashlib.sha256(token.encode()).hexdigest()[:16]}.json"


class Hub:
    """Rank 0's end: accepts, authenticates, and moves messages."""

    def __init__(self, world: World, own: Path, secret: bytes, selector: selectors.BaseSelector) -> None:
        self._world, self._own, self._secret, self._selector = world, own, secret, selector
        self._strangers: dict[Link, tuple[str, float]] = {}
        self._links: dict[int, Link | MailLink] = {}
        self._gone: set[int] = set()
        self._news: list[tuple[int, Message]] = []
        self._newcomers: list[int] = []
        self._mail = mailbox(own, world.token)
        self._address = address_file(own, world.token)
        self._address.unlink(missing_ok=True)
        shutil.rmtree(self._mail, ignore_errors=True)
        self._server = self._listen()
        selector.register(self._server, selectors.EVENT_READ, self._accept)
        where = {"addresses": own_addresses(), "port": self._server.getsockname()[1]}
        replace_file(self._address, json.dumps(where).encode(), 0o600)

    def take(self, sticky: list[Message]) -> list[tuple[int, Message]]:
        """Everything that arrived, by rank; {"t": "lost"} when a connection broke. Newcomers first get `sticky`."""
        self._drop_slow_strangers()
        self._poll_mail()
        for rank in self._newcomers:
            for message in sticky:
                self._links[rank].send(message)
        self._newcomers.clear()
        news, self._news = self._news, []
        return news

    def send_all(self, message: Message) -> None:
        for rank, link in self._links.items():
            if rank not in self._newcomers:  # it gets this with the sticky ones, in order
                link.send(message)

    def flush(self) -> None:
        """Write what the connections take now."""
        for rank, link in list(self._links.items()):
            try:
                link.flush()
            except OSError as error:
                self._lose(rank, str(error))
                continue
            if isinstance(link, Link):
                key = self._selector.get_key(link.sock)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.has_output else 0)
                if key.events != wanted:
                    self._selector.modify(link.sock, wanted, key.data)

    def close(self, wait: bool, patience: float) -> None:
        """Close everything; with `wait`, let the others take the last messages first."""
        deadline = time.monotonic() + patience
        while wait and self._links and time.monotonic() < deadline:
            self.flush()
            mail = any(isinstance(link, MailLink) for link in self._links.values())
            for key, _ in self._selector.select(0.05 if mail else deadline - time.monotonic()):
                if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._server and callable(key.data):
                    key.data(key.fileobj)
            self._poll_mail()
            for rank, message in self._news:
                if message["t"] in ("bye", "lost"):
                    self._forget(rank)
            self._news.clear()
        for link in [*self._strangers, *self._links.values()]:
            link.close()
        self._server.close()
        self._address.unlink(missing_ok=True)
        shutil.rmtree(self._mail, ignore_errors=True)

    def _listen(self) -> socket.socket:
        """On the port everybody derives, or on any other when that one is taken: the address file tells."""
        for port in (self._world.port, 0):
            server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("", port))
                server.listen(self._world.size + 16)
            except OSError:
                server.close()
                continue
            server.setblocking(False)
            return server
        raise RendezvousError("rank 0 cannot listen on any port: is the network namespace without interfaces?")

    def _accept(self, server: object) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._server.accept()
            sock.setblocking(False)
            link, nonce = Link(sock), new_nonce()
            self._strangers[link] = (nonce, time.monotonic() + _HANDSHAKE)
            self._selector.register(sock, selectors.EVENT_READ, lambda _: self._greet(link))
            link.send({"nonce": nonce})
            link.flush()

    def _greet(self, link: Link) -> None:
        """The stranger's first message must be its proof."""
        try:
            messages = link.receive()
            if not messages:
                return
            hello, nonce = messages[0], self._strangers[link][0]
            rank, token = int(hello["rank"]), self._world.token
            expected = proof(self._secret, "member", nonce, token, str(rank))
            known = hmac.compare_digest(str(hello.get("proof")), expected)
            if not (known and 0 < rank < self._world.size) or rank in self._links or rank in self._gone:
                raise ConnectionRefusedError("not a rank of this launch")
            link.send({"proof": proof(self._secret, "leader", str(hello.get("nonce")), token)})
        except (OSError, ValueError, KeyError, TypeError):
            self._drop(link)
            return
        del self._strangers[link]
        self._links[rank] = link
        self._newcomers.append(rank)
        self._selector.modify(link.sock, selectors.EVENT_READ, lambda _: self._readable(link, rank))

    def _readable(self, link: Link, rank: int) -> None:
        try:
            self._news += [(rank, message) for message in link.receive() if "t" in message]
        except OSError as error:
            self._lose(rank, error.strerror or str(error))

    def _lose(self, rank: int, why: str) -> None:
        if rank in self._links:
            self._forget(rank)
            self._news.append((rank, {"t": "lost", "why": why}))

    def _forget(self, rank: int) -> None:
        link = self._links.pop(rank, None)
        self._gone.add(rank)
        if isinstance(link, Link):
            self._selector.unregister(link.sock)
            link.close()

    def _drop(self, link: Link) -> None:
        del self._strangers[link]
        self._selector.unregister(link.sock)
        link.close()

    def _drop_slow_strangers(self) -> None:
        now = time.monotonic()
        for link in [link for link, (_, deadline) in self._strangers.items() if now >= deadline]:
            self._drop(link)

    def _poll_mail(self) -> None:
        """Ranks that could not connect leave files; as long as all are connected nobody looks for any."""
        missing = set(range(1, self._world.size)) - self._links.keys() - self._gone
        with contextlib.suppress(FileNotFoundError):
            for rank in missing & waiting(self._mail) if missing else set():
                self._links[rank] = MailLink(self._mail, rank, leader=True)
                self._newcomers.append(rank)
        for rank, link in list(self._links.items()):
            if isinstance(link, MailLink):
                try:
                    self._news += [(rank, message) for message in link.receive() if message.get("t") != "hello"]
                except (OSError, ValueError) as error:
                    self._lose(rank, str(error))


class Spoke:
    """Another rank's end."""

    def __init__(self, link: Link | MailLink, address: str = "") -> None:
        self._link = link
        self.address = address  # where rank 0 was found; empty when it is only reached by file
        self._news: list[Message] = []
        self._selector: selectors.BaseSelector | None = None
        self._broken = False

    @classmethod
    def join(cls, world: World, own: Path, secret: bytes, timeout: float, give_up: Callable[[], bool]) -> Spoke:
        """Find rank 0. Raises RendezvousError after `timeout` seconds, or once `give_up` says so.

        The launcher's address is tried first, then what rank 0 wrote to the run's directory, then files.
        """
        started, last = time.monotonic(), "nothing tried"
        use_files = False
        while not use_files:
            for address in _addresses(world, own):
                try:
                    return cls(join(address, world.rank, world.token, secret, timeout=3.0), address[0])
                except OSError as error:
                    last = f"{address[0]}:{address[1]}: {error}"
            waited = time.monotonic() - started
            if waited >= timeout or give_up():
                raise RendezvousError(f"rank {world.rank} did not find rank 0 within {waited:.0f} s (last: {last})")
            use_files = waited >= (_TCP_PATIENCE if world.port else 0.0) and address_file(own, world.token).exists()
            time.sleep(0.1)
        log.warning("rank %d cannot connect to rank 0 (%s): using files in %s", world.rank, last, own)
        link = MailLink(mailbox(own, world.token), world.rank, leader=False)
        link.send({"t": "hello"})
        return cls(link)

    def register(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        if isinstance(self._link, Link):
            selector.register(self._link.sock, selectors.EVENT_READ, lambda _: self._readable())

    def send(self, message: Message) -> None:
        if not self._broken:
            self._link.send(message)

    def take(self) -> list[Message]:
        """Everything that arrived; {"t": "lost"} when the connection broke."""
        if isinstance(self._link, MailLink):
            self._readable()
        news, self._news = self._news, []
        return news

    def flush(self) -> None:
        if self._broken:
            return
        try:
            self._link.flush()
        except OSError as error:
            self._break(error)

    def close(self) -> None:
        self.flush()
        self._link.close()

    def _readable(self) -> None:
        if self._broken:
            return
        try:
            self._news += [message for message in self._link.receive() if "t" in message]
        except (OSError, ValueError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        self._broken = True
        if isinstance(self._link, Link) and self._selector is not None:
            self._selector.unregister(self._link.sock)
        self._news.append({"t": "lost", "why": getattr(error, "strerror", None) or str(error)})


def _addresses(world: World, own: Path) -> list[tuple[str, int]]:
    """Where rank 0 may be. None at all for a world without a port: such a world talks by file."""
    if world.port == 0:
        return []
    try:
        where = json.loads(address_file(own, world.token).read_bytes())
        written = [(str(address), int(where["port"])) for address in where["addresses"]]
    except (OSError, ValueError, KeyError, TypeError):
        written = []
    return [(world.host, world.port), *written]
