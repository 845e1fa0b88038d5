"""Frames between the ranks, and the handshake that keeps strangers and older attempts out.

A frame is a 4-byte big-endian length and a JSON object. Both ends prove that they can read the same secret file in the
run's directory; on a cluster with many users a port alone is no proof.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import json
import secrets
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
_LARGEST = 1 << 20  # bytes; the messages here are a few hundred
_SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of an interface


def proof(secret: bytes, *parts: str) -> str:
    """HMAC-SHA-256 over the parts, in hex."""
    return hmac.digest(secret, "\0".join(parts).encode(), "sha256").hex()


def new_nonce() -> str:
    return secrets.token_hex(16)


def own_addresses() -> list[str]:
    """This host's addresses, IPv4 before IPv6, loopback last."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(socket.inet_ntoa(answer[20:24]))
    found += _ipv6_addresses()
    return sorted(found, key=lambda address: address.startswith("127.") or address == "::1")


def _ipv6_addresses() -> list[str]:
    """Those that mean the same to other hosts, and loopback, as Linux lists them."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
        return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[3] in ("00", "10")]
    except (OSError, ValueError, IndexError):
        return []


def keep_alive(sock: socket.socket) -> None:
    """Notice a peer whose host vanished without a word, within about 10 seconds."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


class PeerClosedError(ConnectionResetError):
    """The other end was closed in good order: its process has ended, or does not want this connection any more."""


class Link:
    """One connection, non-blocking: `send` queues, `flush` and `receive` move bytes; OSError when it is broken."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._inbox = bytearray()
        self._outbox = bytearray()
        keep_alive(sock)

    def send(self, message: Message) -> None:
        data = json.dumps(message).encode()
        self._outbox += _LENGTH.pack(len(data)) + data

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    def flush(self) -> None:
        """Write what the kernel takes now."""
        while self._outbox:
            try:
                count = self.sock.send(self._outbox)
            except BlockingIOError:
                return
            del self._outbox[:count]

    def receive(self) -> list[Message]:
        """Every whole message that arrived. Raises ConnectionError when the peer closed or sent nonsense."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise PeerClosedError(errno.ECONNRESET, "the peer closed the connection")
        self._inbox += data
        return self.parse()

    def parse(self) -> list[Message]:
        """Every whole message already here. Raises ConnectionError for nonsense."""
        messages: list[Message] = []
        while len(self._inbox) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._inbox)
            if length > _LARGEST:
                raise ConnectionAbortedError(errno.EPROTO, "the peer does not speak this protocol")
            if len(self._inbox) < _LENGTH.size + length:
                break
            try:
                message = json.loads(self._inbox[_LENGTH.size : _LENGTH.size + length])
            except (ValueError, RecursionError) as error:
                raise ConnectionAbortedError(errno.EPROTO, "the peer does not speak this protocol") from error
            if not isinstance(message, dict):
                raise ConnectionAbortedError(errno.EPROTO, "the peer does not speak this protocol")
            del self._inbox[: _LENGTH.size + length]
            messages.append(message)
        return messages

    def close(self) -> None:
        self.sock.close()


@dataclass(frozen=True, slots=True)
class Hello:
    """What a rank says of itself when it connects: `session` names its process, `heard` counts the messages it has."""

    rank: int
    token: str
    session: str
    heard: int = 0

    def proof(self, secret: bytes, nonce: str) -> str:
        return proof(secret, "member", nonce, self.token, str(self.rank), self.session)


def join(address: tuple[str, int], hello: Hello, secret: bytes, timeout: float) -> tuple[Link, int]:
    """Connect to rank 0 and prove who we are, waiting at most `timeout` seconds a step.

    Returns the connection and how many of our messages rank 0 has. Raises OSError.
    """
    sock = socket.create_connection(address, timeout=timeout)
    try:
        link = Link(sock)
        challenge = _next(link)
        nonce = new_nonce()
        answer = hello.proof(secret, str(challenge.get("nonce")))
        link.send({"t": "hello", **asdict(hello), "proof": answer, "nonce": nonce})
        link.flush()
        welcome = _next(link)
        if not hmac.compare_digest(str(welcome.get("proof")), proof(secret, "leader", nonce, hello.token)):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{address[0]}:{address[1]} is not rank 0 of this launch")
        sock.setblocking(False)
        return link, int(welcome.get("heard", 0))
    except BaseException:
        sock.close()
        raise


def _next(link: Link) -> Message:
    """One message in blocking mode, read to its last byte and no further."""
    (length,) = _LENGTH.unpack(_exactly(link.sock, _LENGTH.size))
    if length > _LARGEST:
        raise ConnectionAbortedError(errno.EPROTO, "the peer does not speak this protocol")
    try:
        message = json.loads(_exactly(link.sock, length))
    except (ValueError, RecursionError) as error:
        raise ConnectionAbortedError(errno.EPROTO, "the peer does not speak this protocol") from error
    return message if isinstance(message, dict) else {}


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the other side closed: another launch listens there")
        data += chunk
    return data
