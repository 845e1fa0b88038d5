"""List and watch as a pure state machine: API replies go in, changes and the next instruction come out.

No I/O, no clock, no randomness of its own, so every way in which a watch can break is an ordinary unit test. The driver
(:mod:`everstep.adapters.kube.stream`) asks :meth:`Reflection.next`, does that one thing, and reports what came back.

::

    Pause* -> FetchPage -> ... -> FetchPage -> OpenWatch -> (lines) -> OpenWatch -> ...
                 ^                                            | 410 Gone, or three hollow watches
                 +--------------------------------------------+

Changes are spoken as ``Init``, ``InitApply``..., ``InitDone`` for a listing and ``Apply``/``Delete`` for a watch, so
that what vanished during a gap is seen as deleted by whoever keeps the objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from everstep.adapters.kube.wire import AnyObject, ApiStatus, Listing, ObjectMeta, WatchLine

FIRST_DELAY = 0.1  # seconds; doubles with each failure that follows another
LONGEST_DELAY = 10.0  # seconds; one controller watches, so coming back soon costs the API server nothing
HOLLOW_SECONDS = 1.0  # a watch that ends faster than this and says nothing new is hollow
HOLLOW_LIMIT = 3  # so many hollow watches in a row: the version is stale whatever the server says (kubernetes#104171)
GONE = 410


class HasMeta(Protocol):
    """A decoded view of an object; the reflection needs its metadata only."""

    @property
    def metadata(self) -> ObjectMeta: ...


V = TypeVar("V", bound=HasMeta)


@dataclass(frozen=True, slots=True)
class Init:
    """A listing begins; what it does not name by ``InitDone`` no longer exists."""


@dataclass(frozen=True, slots=True)
class InitApply(Generic[V]):
    view: V


@dataclass(frozen=True, slots=True)
class InitDone:
    resource_version: str


@dataclass(frozen=True, slots=True)
class Apply(Generic[V]):
    view: V


@dataclass(frozen=True, slots=True)
class Delete:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Skip:
    """An object that exists and cannot be decoded; its last readable version must not be served any more."""

    namespace: str
    name: str
    why: str


Change = Init | InitApply[V] | InitDone | Apply[V] | Delete | Skip


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds, then ask for the next instruction."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FetchPage:
    """List one page; ``token`` is the previous page's ``continue``, "" for the first."""

    token: str


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """Watch from this resourceVersion, with bookmarks."""

    resource_version: str


Instruction = Pause | FetchPage | OpenWatch


class Reflection(Generic[V]):
    """The state of one list+watch.

    Args:
        view: msgspec struct with a ``metadata`` field; only the fields it names are decoded.
        jitter: factor for each pause, for example uniform in 0.8..1.2.
    """

    def __init__(self, view: type[V], jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._object = msgspec.json.Decoder(view)
        self._any = msgspec.json.Decoder(AnyObject)
        self._listing = msgspec.json.Decoder(Listing)
        self._line = msgspec.json.Decoder(WatchLine)
        self._status = msgspec.json.Decoder(ApiStatus)
        self._version: str | None = None  # None: list first
        self._token = ""
        self._delay = FIRST_DELAY
        self._pause = 0.0
        self._hollow = 0
        self._opened_at_version = ""
        self._over = False

    def next(self) -> Instruction:
        """What to do now. Reporting the result of it is what moves the machine on."""
        if self._pause > 0:
            pause, self._pause = self._pause, 0.0
            return Pause(pause)
        if self._version is None:
            return FetchPage(self._token)
        self._opened_at_version, self._over = self._version, False
        return OpenWatch(self._version)

    # --- what the driver reports --------------------------------------------------------------------------------

    def page(self, body: bytes) -> list[Change[V]]:
        """One page of a listing arrived with status 200."""
        try:
            listing = self._listing.decode(body)
        except msgspec.DecodeError:
            self._list_again()
            self._back_off(None)
            return []
        changes: list[Change[V]] = [] if self._token else [Init()]
        for raw in listing.items:
            view = self._decode(raw)
            changes.append(view if isinstance(view, Skip) else InitApply(view))
        self._token = listing.metadata.next_page
        if not self._token:
            self._version = listing.metadata.resource_version
            self._hollow = 0
            changes.append(InitDone(self._version))
        return changes

    def line(self, body: bytes) -> list[Change[V]]:
        """One line of the watch arrived. After :attr:`over` turns true the driver must close the stream."""
        try:
            line = self._line.decode(body)
        except msgspec.DecodeError:  # cut in the middle of a line, or a proxy's error page: the position is still good
            self.broken()
            return []
        if line.type == "ERROR":
            self._error(line.object)
            return []
        meta = self._meta(line.object)
        self._advance(meta.resource_version)
        match line.type:
            case "ADDED" | "MODIFIED":
                view = self._decode(line.object)
                return [view if isinstance(view, Skip) else Apply(view)]
            case "DELETED":
                return [Delete(meta.namespace, meta.name)]
            case _:  # BOOKMARK, or a type from the future: only its version is of use
                return []

    @property
    def over(self) -> bool:
        """True when nothing more of the current watch may be read."""
        return self._over

    @property
    def listing(self) -> bool:
        """True between two pages of one listing."""
        return bool(self._token)

    def refused(self, status: int, retry_after: float | None = None) -> None:
        """The server answered with an error status; ``retry_after`` in seconds, as its header said."""
        if status == GONE:
            self._list_again()
        self._back_off(retry_after)

    def broken(self) -> None:
        """The connection could not be made, was cut, or timed out; the position in the stream is still good."""
        self._over = True
        self._back_off(None)

    def ended(self, seconds: float) -> None:
        """The server closed the watch in good order, ``seconds`` after it was opened."""
        if self._over or self._version is None:  # already dealt with when the error came
            return
        if seconds < HOLLOW_SECONDS and self._version == self._opened_at_version:
            self._hollow += 1
            self._back_off(None)
            if self._hollow >= HOLLOW_LIMIT:
                self._list_again()
        else:
            self._hollow, self._delay = 0, FIRST_DELAY

    # --- inside -------------------------------------------------------------------------------------------------

    def _error(self, raw: msgspec.Raw) -> None:
        self._over = True
        try:
            status = self._status.decode(raw)
        except msgspec.DecodeError:
            status = ApiStatus()
        self.refused(status.code, status.details.retry_after_seconds or None)

    def _decode(self, raw: msgspec.Raw) -> V | Skip:
        try:
            return self._object.decode(raw)
        except msgspec.DecodeError as why:
            meta = self._meta(raw)
            return Skip(meta.namespace, meta.name, str(why))

    def _meta(self, raw: msgspec.Raw) -> ObjectMeta:
        try:
            return self._any.decode(raw).metadata
        except msgspec.DecodeError:
            return ObjectMeta()

    def _advance(self, version: str) -> None:
        if version:
            self._version = version
            self._delay = FIRST_DELAY

    def _list_again(self) -> None:
        self._version, self._token, self._hollow = None, "", 0

    def _back_off(self, retry_after: float | None) -> None:
        self._pause = max(retry_after or 0.0, self._delay * self._jitter())
        self._delay = min(self._delay * 2, LONGEST_DELAY)
