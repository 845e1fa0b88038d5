"""Rank 0's connections (Hub) and every other rank's single one (Spoke), over TCP or, where that fails, over files.

A connection that breaks is made again for as long as both processes live, and what was said meanwhile is not lost.
Only then is it told: {"t": "lost"} once a rank is away for too long, {"t": "back"} when it has come back after that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
import logging
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .durable import replace_file
from .errors import RendezvousError
from .lines import Line
from .mail import MailLink, mailbox, waiting
from .wire import Hello, Link, Message, PeerClosedError, join, new_nonce, own_addresses, proof
from .world import World

log = logging.getLogger("everstep_checkpoint")

_HANDSHAKE = 10.0  # seconds a stranger may take to prove itself
_TCP_PATIENCE = 20.0  # seconds of refused connections before a rank writes to rank 0 by file
_AWAY = 3.0  # seconds without a connection before the peer counts as lost; the peer notices, and is back within one
_AGAIN = 0.5  # seconds between two attempts to be back
_STEP = 3.0  # seconds that rank 0 may take to answer one message of the handshake


def address_file(own: Path, token: str) -> Path:
    """Where rank 0 writes its addresses and port, for when the launcher's host name or port does not do."""
    return own / f"hub-{hashlib.sha256(token.encode()).hexdigest()[:16]}.json"


class Hub:
    """Rank 0's end: accepts, authenticates, and moves messages."""

    def __init__(self, world: World, own: Path, secret: bytes, selector: selectors.BaseSelector) -> None:
        self._world, self._own, self._secret, self._selector = world, own, secret, selector
        self._strangers: dict[Link, tuple[str, float]] = {}
        self._links: dict[int, Line | MailLink] = {}
        self._away: dict[int, tuple[float, str]] = {}  # when a rank without a connection counts as lost, and why
        self._lost: set[int] = set()
        self._gone: set[int] = set()  # they said goodbye
        self._news: list[tuple[int, Message]] = []
        self._newcomers: list[int] = []
        self._mail = mailbox(own, world.token)
        self._address = address_file(own, world.token)
        self._address.unlink(missing_ok=True)
        shutil.rmtree(self._mail, ignore_errors=True)
        self._server = self._listen()
        selector.register(self._server, selectors.EVENT_READ, self._accept)
        where = {"addresses": own_addresses(), "port": self._server.getsockname()[1]}
        try:
            replace_file(self._address, json.dumps(where).encode(), 0o600)
        except OSError as error:  # a full disk: what the launcher says of rank 0 may do
            log.warning("cannot tell the other ranks rank 0's addresses by file: %s", error)

    def take(self, sticky: list[Message]) -> list[tuple[int, Message]]:
        """Everything that arrived, by rank, with what the module's docstring says. Newcomers first get `sticky`."""
        self._drop_slow_strangers()
        self._poll_mail()
        self._miss()
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
                self._break(rank, error)
                continue
            if isinstance(link, Line) and link.link is not None:
                key = self._selector.get_key(link.link.sock)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.has_output else 0)
                if key.events != wanted:
                    self._selector.modify(link.link.sock, wanted, key.data)

    def close(self, wait: bool, patience: float) -> None:
        """Close everything; with `wait`, let the others take the last messages first."""
        deadline = time.monotonic() + patience
        while wait and self._reachable() and time.monotonic() < deadline:
            self.flush()
            mail = any(isinstance(link, MailLink) for link in self._links.values())
            for key, _ in self._selector.select(0.05 if mail else deadline - time.monotonic()):
                if isinstance(key.fileobj, socket.socket) and key.fileobj is not self._server and callable(key.data):
                    key.data(key.fileobj)
            self._poll_mail()
            self._news.clear()
        for link in [*self._strangers, *self._links.values()]:
            link.close()
        self._server.close()
        self._address.unlink(missing_ok=True)
        shutil.rmtree(self._mail, ignore_errors=True)

    def _reachable(self) -> set[int]:
        """Ranks that can still be told something, and have not said goodbye."""
        deaf = {rank for rank, link in self._links.items() if isinstance(link, Line) and link.link is None}
        return self._links.keys() - deaf - self._gone - self._lost

    def _listen(self) -> socket.socket:
        """On the port everybody derives, or on any other when that one is taken: the address file tells."""
        for port in (self._world.port, 0):
            for family in (socket.AF_INET6, socket.AF_INET):  # the first takes IPv4 as well, where there is IPv6
                try:
                    dual = family == socket.AF_INET6
                    server = socket.create_server(
                        ("", port), family=family, backlog=self._world.size + 16, dualstack_ipv6=dual
                    )
                except (OSError, ValueError):
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
            said, (nonce, _) = messages[0], self._strangers[link]
            hello = Hello(int(said["rank"]), self._world.token, str(said["session"]), int(said["heard"]))
            known = hmac.compare_digest(str(said.get("proof")), hello.proof(self._secret, nonce))
            line = self._links.get(hello.rank)
            another = line is not None and not (isinstance(line, Line) and line.session == hello.session)
            if not (known and 0 < hello.rank < self._world.size) or another or hello.rank in self._gone:
                raise ConnectionRefusedError("not a rank of this launch")
            welcome = proof(self._secret, "leader", str(said.get("nonce")), self._world.token)
            self._welcome(link, hello, welcome)
        except Exception:
            # Whatever a stranger says: it must not reach the thread that everything else hangs on.
            self._drop(link)

    def _welcome(self, link: Link, hello: Hello, welcome: str) -> None:
        """A rank joins, or is back. Raises ConnectionAbortedError when too much was said while it was away."""
        rank, line = hello.rank, self._links.get(hello.rank)
        if not isinstance(line, Line):
            # Who has heard something already heard it from a rank 0 before this one: it must not take the rank's place.
            line = Line(hello.session)
            missed = line.missed(hello.heard)
            self._links[rank] = line
            self._newcomers.append(rank)
        else:
            missed = line.missed(hello.heard)
        self._unhook(line)
        link.send({"proof": welcome, "heard": line.heard})
        line.attach(link, missed)
        del self._strangers[link]
        self._selector.modify(link.sock, selectors.EVENT_READ, lambda _: self._readable(rank))
        self._away.pop(rank, None)
        if rank in self._lost:
            self._lost.remove(rank)
            self._news.append((rank, {"t": "back"}))

    def _readable(self, rank: int) -> None:
        line = self._links[rank]
        try:
            messages = [message for message in line.receive() if "t" in message]
        except OSError as error:
            self._break(rank, error)
            return
        self._news += [(rank, message) for message in messages]
        if any(message["t"] == "bye" for message in messages):
            self._gone.add(rank)

    def _break(self, rank: int, error: OSError | ValueError) -> None:
        """The connection is no more. A process that has ended closes it; anything else it may live through."""
        line, why = self._links[rank], getattr(error, "strerror", None) or str(error)
        if isinstance(line, Line):
            self._unhook(line)
        elif rank in self._lost:
            return
        ended = isinstance(error, PeerClosedError) or isinstance(line, MailLink)
        self._away[rank] = (time.monotonic() + (0.0 if ended else _AWAY), why)
        self._miss()

    def _miss(self) -> None:
        now = time.monotonic()
        for rank, (deadline, why) in list(self._away.items()):
            if now >= deadline:
                del self._away[rank]
                self._lost.add(rank)
                self._news.append((rank, {"t": "lost", "why": why}))

    def _unhook(self, line: Line) -> None:
        if line.link is not None:
            self._selector.unregister(line.link.sock)
            line.cut()

    def _drop(self, link: Link) -> None:
        if self._strangers.pop(link, None) is not None:
            self._selector.unregister(link.sock)
        link.close()

    def _drop_slow_strangers(self) -> None:
        now = time.monotonic()
        for link in [link for link, (_, deadline) in self._strangers.items() if now >= deadline]:
            self._drop(link)

    def _poll_mail(self) -> None:
        """Ranks that could not connect leave files; as long as all are connected nobody looks for any."""
        missing = set(range(1, self._world.size)) - self._links.keys()
        with contextlib.suppress(FileNotFoundError):
            for rank in missing & waiting(self._mail) if missing else set():
                self._links[rank] = MailLink(self._mail, rank, leader=True)
                self._newcomers.append(rank)
        for rank, link in list(self._links.items()):
            if isinstance(link, MailLink) and rank not in self._lost:
                try:
                    messages = [message for message in link.receive() if message.get("t") != "hello"]
                except (OSError, ValueError) as error:
                    self._break(rank, error)
                    continue
                self._news += [(rank, message) for message in messages]
                if any(message["t"] == "bye" for message in messages):
                    self._gone.add(rank)


class Spoke:
    """Another rank's end."""

    def __init__(self, link: Line | MailLink, rejoin: Callable[[int], tuple[Link, int]], address: str = "") -> None:
        self._link = link
        self._rejoin = rejoin  # connect once more, having heard so many messages; raises OSError
        self.address = address  # where rank 0 was found; empty when it is only reached by file
        self._news: list[Message] = []
        self._selector: selectors.BaseSelector | None = None
        self._away: tuple[float, str] | None = None  # when rank 0 counts as lost, and why
        self._lost = False
        self._fresh: tuple[Link, int] | None = None  # the next connection, and what rank 0 has heard
        self._closed = threading.Event()

    @classmethod
    def join(cls, world: World, own: Path, secret: bytes, timeout: float, give_up: Callable[[], bool]) -> Spoke:
        """Find rank 0. Raises RendezvousError after `timeout` seconds, or once `give_up` says so.

        The launcher's address is tried first, then what rank 0 wrote to the run's directory, then files.
        """
        started, last, session = time.monotonic(), "nothing tried", new_nonce()
        use_files = False
        while not use_files:
            for address in _addresses(world, own):
                rejoin = _knocking(address, Hello(world.rank, world.token, session), secret)
                try:
                    link, _ = rejoin(0)
                except (OSError, UnicodeError) as error:  # a name that is none makes its encoding fail
                    last = f"{address[0]}:{address[1]}: {error}"
                    continue
                line = Line(session)
                line.attach(link, [])
                return cls(line, rejoin, address[0])
            waited = time.monotonic() - started
            if waited >= timeout or give_up():
                raise RendezvousError(f"rank {world.rank} did not find rank 0 within {waited:.0f} s (last: {last})")
            use_files = waited >= (_TCP_PATIENCE if world.port else 0.0) and address_file(own, world.token).exists()
            time.sleep(0.1)
        log.warning("rank %d cannot connect to rank 0 (%s): using files in %s", world.rank, last, own)
        mail = MailLink(mailbox(own, world.token), world.rank, leader=False)
        mail.send({"t": "hello"})
        return cls(mail, _knocking(("", 0), Hello(world.rank, world.token, session), secret))

    def register(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        if isinstance(self._link, Line) and self._link.link is not None:
            selector.register(self._link.link.sock, selectors.EVENT_READ, lambda _: self._readable())

    def send(self, message: Message) -> None:
        self._link.send(message)

    def take(self) -> list[Message]:
        """Everything that arrived, with what the module's docstring says."""
        if self._fresh is not None:
            self._reconnect(*self._fresh)
        if isinstance(self._link, MailLink) and not self._lost:
            self._readable()
        if self._away is not None and time.monotonic() >= self._away[0]:
            self._news.append({"t": "lost", "why": self._away[1]})
            self._away, self._lost = None, True
        news, self._news = self._news, []
        return news

    def flush(self) -> None:
        try:
            self._link.flush()
        except OSError as error:
            self._break(error)

    def close(self) -> None:
        self._closed.set()
        self.flush()
        self._link.close()

    def _readable(self) -> None:
        try:
            self._news += [message for message in self._link.receive() if "t" in message]
        except (OSError, ValueError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """The connection is no more: try for another one, and meanwhile say so if that takes long."""
        ended = isinstance(error, PeerClosedError) or isinstance(self._link, MailLink)
        if not self._lost:
            why = getattr(error, "strerror", None) or str(error)
            self._away = (time.monotonic() + (0.0 if ended else _AWAY), why)
        if isinstance(self._link, Line) and self._link.link is not None:
            if self._selector is not None:
                self._selector.unregister(self._link.link.sock)
            self._link.cut()
            threading.Thread(target=self._knock, args=(self._link.heard,), name="everstep-rejoin", daemon=True).start()

    def _knock(self, heard: int) -> None:
        while not self._closed.wait(_AGAIN):
            try:
                fresh = self._rejoin(heard)
            except OSError:
                continue
            self._fresh = fresh
            return

    def _reconnect(self, link: Link, heard: int) -> None:
        self._fresh = None
        assert isinstance(self._link, Line)
        assert self._selector is not None
        try:
            self._link.attach(link, self._link.missed(heard))
        except ConnectionAbortedError as error:
            log.warning("no way back to rank 0: %s", error)
            link.close()
            return
        self._selector.register(link.sock, selectors.EVENT_READ, lambda _: self._readable())
        self._news += [{"t": "back"}] if self._lost else []
        self._away, self._lost = None, False


def _knocking(address: tuple[str, int], hello: Hello, secret: bytes) -> Callable[[int], tuple[Link, int]]:
    def knock(heard: int) -> tuple[Link, int]:
        return join(address, dataclasses.replace(hello, heard=heard), secret, _STEP)

    return knock


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
