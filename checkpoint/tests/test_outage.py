"""The ranks' connection ends while they live on, as in an outage of the network: it is made again, and saves go on."""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS, Launch, records, until

from everstep_checkpoint import links, verify
from everstep_checkpoint.agreement import Member, Message
from everstep_checkpoint.lines import Line
from everstep_checkpoint.links import Hub, Spoke
from everstep_checkpoint.world import World, detect

STUBBORN = PROGRAMS / "stubborn.py"
_RESET = struct.pack("ii", 1, 0)  # closing says RST, as a kernel does for a connection that it knows no more


class Network:
    """What lies between rank 1 and rank 0: a relay that can lose its connections, and be away for a while."""

    def __init__(self, own: Path, port: int) -> None:
        self._own = own
        self._door = socket.create_server(("127.0.0.2", port))
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._open = True
        self._selector = selectors.DefaultSelector()
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._relay, daemon=True).start()

    @property
    def connected(self) -> bool:
        return bool(self._pairs)

    def end(self) -> None:
        """All connections end, and no new one comes about."""
        with self._lock:
            self._open = False
            for one in list(self._pairs):
                self._reset(one)

    def begin(self) -> None:
        self._open = True

    def close(self) -> None:
        self.end()
        self._door.close()

    def _reset(self, one: socket.socket) -> None:
        self._pairs.pop(one, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(one)
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                with self._lock:
                    self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if not self._open:
                raise ConnectionResetError
            (address,) = self._own.glob("hub-*.json")
            server = socket.create_connection(("127.0.0.1", json.loads(address.read_bytes())["port"]))
        except (OSError, ValueError):
            self._reset(client)
            return
        self._pairs |= {client: server, server: client}
        for one in (client, server):
            self._selector.register(one, selectors.EVENT_READ)

    def _relay(self) -> None:
        while True:
            for key, _ in self._selector.select(0.05):
                one = key.fileobj
                with self._lock:
                    if not isinstance(one, socket.socket) or one not in self._pairs:
                        continue
                    other = self._pairs[one]
                    data = b""
                    with contextlib.suppress(OSError):
                        data = one.recv(1 << 16)
                    if data:
                        with contextlib.suppress(OSError):
                            other.sendall(data)
                    else:
                        self._selector.unregister(one)
                        with contextlib.suppress(OSError):
                            other.shutdown(socket.SHUT_WR)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[[str], Network]]:
    made: list[Network] = []

    def make(master_port: str) -> Network:
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": master_port}
        made.append(Network(tmp_path / ".everstep", detect(env).port))
        return made[-1]

    yield make
    for each in made:
        each.close()


def events(directory: Path, event: str) -> list[dict[str, object]]:
    return [line for line in records(directory)[0] if line["event"] == event]


def published(directory: Path) -> int:
    return max((verify(path).step for path in directory.glob("step_*")), default=0)


@pytest.mark.parametrize("away", [30.0, 0.1], ids=["soon back", "called lost meanwhile"])
def test_saves_go_on_after_an_outage(
    tmp_path: Path, launch: Callable[..., Launch], network: Callable[[str], Network], away: float
) -> None:
    port = str(20000 + secrets.randbelow(40000))
    between = network(port)
    args = ("--away", str(away), "--grace", "60")
    ranks = launch(tmp_path, *args, program=STUBBORN, MASTER_PORT=port, MASTER_ADDR="127.0.0.2")
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    assert between.connected, "the ranks found another way to each other: this would prove nothing"
    between.end()
    if away < 1:
        until(lambda: [e for e in events(tmp_path, "save") if e["phase"] == "failed"], "a save says why it is none")
        (failed, *_) = [e for e in events(tmp_path, "save") if e["phase"] == "failed"]
        assert "rank 1 gone" in str(failed["why"]) or "rank 1: rank 0 is gone" in str(failed["why"])
    else:
        until(lambda: len(events(tmp_path, "save")) % 2 == 1, "a save waits for the other rank")
    before = published(tmp_path)
    between.begin()
    until(lambda: published(tmp_path) > before, "the next checkpoint is there")
    if away > 1:
        assert not [e for e in events(tmp_path, "save") if e["phase"] == "failed"]
    assert [e["phase"] for e in events(tmp_path, "peer")] == (["lost", "back"] if away < 1 else [])
    ranks.signal(signal.SIGTERM, 1)
    assert ranks.wait() == [0, 0]
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("stopped", published(tmp_path))


def test_told_to_stop_in_an_outage(
    tmp_path: Path, launch: Callable[..., Launch], network: Callable[[str], Network]
) -> None:
    """What rank 1 has to say reaches rank 0 on the next connection."""
    port = str(20000 + secrets.randbelow(40000))
    between = network(port)
    ranks = launch(
        tmp_path, "--away", "30", "--grace", "60", program=STUBBORN, MASTER_PORT=port, MASTER_ADDR="127.0.0.2"
    )
    until((tmp_path / "step_00000005").is_dir, "the first checkpoint is there")
    assert between.connected
    between.end()
    ranks.signal(signal.SIGTERM, 1)
    between.begin()
    assert ranks.wait() == [0, 0]
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("stopped", published(tmp_path))


def test_a_rank_whose_first_welcome_never_arrived_joins_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 was too busy to answer in time: the rank tries again, and it is no stranger for that."""
    monkeypatch.setattr(links, "_AWAY", 0.1)
    world, own, selector = World(0, 2, "127.0.0.1", 0, "launch"), tmp_path / ".everstep", selectors.DefaultSelector()
    own.mkdir()
    hub = Hub(world, own, b"secret", selector)
    port = json.loads(next(own.glob("hub-*.json")).read_bytes())["port"]
    stop, heard = threading.Event(), []

    def serve() -> None:
        while not stop.is_set():
            for key, _ in selector.select(0.02):
                key.data(key.fileobj)
            heard.extend(hub.take([{"t": "resume"}]))
            hub.flush()

    background = threading.Thread(target=serve)
    background.start()
    try:
        member = World(1, 2, "127.0.0.1", port, "launch")
        first = Spoke.join(member, own, b"secret", 5.0, lambda: False)
        first._link.close()  # it never read its welcome, nor what came after
        until(lambda: heard, "rank 0 noticed that")
        link, known = first._rejoin(0)
        line = Line("whatever")
        line.attach(link, [])
        got: list[Message] = []
        until(lambda: got.extend(line.receive()) or got, "rank 1 is told where to begin")
        assert (known, got) == (0, [{"t": "resume"}])
        until(lambda: len(heard) == 2, "rank 0 counts on it again")
        assert [message["t"] for _, message in heard] == ["lost", "back"]
    finally:
        stop.set()
        background.join()
        hub.close(wait=False, patience=0.0)


def test_what_was_said_without_a_connection_is_said_on_the_next() -> None:
    line = Line("a process")
    for number in range(5):
        line.send({"n": number})
    assert [message["n"] for message in line.missed(3)] == [3, 4]
    assert line.missed(5) == []
    with pytest.raises(ConnectionAbortedError):
        line.missed(6)
    for number in range(2000):
        line.send({"n": number})
    with pytest.raises(ConnectionAbortedError, match="missed more"):
        line.missed(5)


@pytest.mark.parametrize("kind", ["stop", "save"])
def test_a_step_that_was_passed_before_it_was_agreed_on_is_not_taken_for_another(kind: str) -> None:
    member = Member()
    member.passed = 12
    answer = member.handle({"t": "go", "kind": kind, "step": 12, "polls": 1})
    assert answer is not None
    assert (answer["t"], answer["step"]) == ("unwritten", 12)
    assert member.save_at is None
    assert member.stop is None
    assert (member.abandoned is not None) == (kind == "stop")
