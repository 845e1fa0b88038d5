"""A cache of one kind, kept by the reflector: what exists, what could not be read, and whether to believe it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from time import monotonic
from typing import Generic, TypeVar

import structlog

from everstep.adapters.kube.reflect import Apply, Change, Delete, HasMeta, Init, InitApply, InitDone, Skip
from everstep.core.errors import Unreachable, Unreadable

BLIND_SECONDS = 30.0  # a watch that has been broken for longer is not to be believed any more

log = structlog.get_logger(__name__)

V = TypeVar("V", bound=HasMeta)
T = TypeVar("T")

Key = tuple[str, str]  # (namespace, name); namespace "" for cluster-scoped kinds


class Store(Generic[V, T]):
    """Objects by (namespace, name), each projected once, when it arrives.

    Args:
        what: plural for people, ``nodes``.
        project: turns the decoded view into what readers get; may raise Unreadable.
        index: optional second key, for example a pod's node.
        now: monotonic seconds.
    """

    def __init__(
        self,
        what: str,
        project: Callable[[V], T],
        index: Callable[[T], Hashable] | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.what = what
        self._project, self._index, self._now = project, index, now
        self._objects: dict[Key, T] = {}
        self._unreadable: dict[Key, str] = {}
        self._by_index: dict[Hashable, dict[Key, T]] = {}
        self._listing: set[Key] | None = None
        self._synced = asyncio.Event()
        self._blind_since: float | None = now()
        self._why = "not listed yet"
        self._listeners: list[Callable[[Key, T | None, T | None], None]] = []

    def on_change(self, listener: Callable[[Key, T | None, T | None], None]) -> None:
        """``listener`` gets (key, before, after) of every object that came, changed, went or became unreadable.

        ``before`` is None for a new object, ``after`` for one that went or became unreadable.
        """
        self._listeners.append(listener)

    # --- reading ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises Unreachable while the cache must not be believed: never listed, or blind for too long."""
        if not self._synced.is_set():
            raise Unreachable(f"the list of {self.what} has not arrived yet ({self._why}); waiting for the API server")
        if self._blind_since is not None and (blind := self._now() - self._blind_since) > BLIND_SECONDS:
            raise Unreachable(f"the watch of {self.what} has been broken for {blind:.0f} s ({self._why})")

    def get(self, name: str, namespace: str = "") -> T | None:
        """None only when the API server's list does not have it.

        Raises:
            Unreachable: the cache must not be believed.
            Unreadable: the object exists and cannot be understood.
        """
        self.check()
        key = (namespace, name)
        if (why := self._unreadable.get(key)) is not None:
            raise Unreadable(f"{self.what} {name} cannot be read: {why}")
        return self._objects.get(key)

    def all(self) -> list[T]:
        """Every readable object; see :attr:`unreadable` for the others. Raises Unreachable."""
        self.check()
        return list(self._objects.values())

    def items(self) -> list[tuple[Key, T]]:
        """Every readable object with its key. Raises Unreachable."""
        self.check()
        return list(self._objects.items())

    def indexed(self, value: Hashable) -> list[T]:
        """Readable objects whose index is ``value``. Raises Unreachable."""
        self.check()
        return list(self._by_index.get(value, {}).values())

    @property
    def unreadable(self) -> dict[Key, str]:
        """Why each object that exists could not be decoded."""
        return dict(self._unreadable)

    @property
    def synced(self) -> bool:
        """True once a whole listing has arrived."""
        return self._synced.is_set()

    @property
    def trouble(self) -> str:
        """Why the watch is not open, "" while it is."""
        return self._why

    def find(self, name: str, namespace: str = "") -> T | None:
        """Like :meth:`get` for bulk readers who have called :meth:`check`; None also for what cannot be read."""
        return self._objects.get((namespace, name))

    async def wait_synced(self) -> None:
        await self._synced.wait()

    # --- what the reflector does --------------------------------------------------------------------------------

    def take(self, change: Change[V]) -> None:
        match change:
            case Init():
                self._listing = set()
            case InitApply(view) | Apply(view):
                self._put(view)
            case Skip(namespace, name, why):
                self._spoil((namespace, name), why)
            case Delete(namespace, name):
                self._remove([(namespace, name)])
            case InitDone():
                kept = self._listing or set()
                self._listing = None
                self._remove([key for key in (*self._objects, *self._unreadable) if key not in kept])
                self._synced.set()

    def connected(self) -> None:
        self._blind_since, self._why = None, ""

    def disconnected(self, why: str) -> None:
        if self._blind_since is None:
            self._blind_since = self._now()
        self._why = why

    # --- inside -------------------------------------------------------------------------------------------------

    def _put(self, view: V) -> None:
        key = (view.metadata.namespace, view.metadata.name)
        try:
            thing = self._project(view)
        except Unreadable as why:
            self._spoil(key, str(why))
            return
        self._seen(key)
        self._unreadable.pop(key, None)
        before = self._drop(key)
        self._objects[key] = thing
        if self._index is not None:
            self._by_index.setdefault(self._index(thing), {})[key] = thing
        if before != thing:  # a listing repeats what is known; nobody needs to look at it again
            self._tell(key, before, thing)

    def _spoil(self, key: Key, why: str) -> None:
        log.warning("object skipped: it cannot be read", kind=self.what, namespace=key[0], name=key[1], why=why)
        self._seen(key)
        before = self._drop(key)
        self._unreadable[key] = why
        self._tell(key, before, None)

    def _remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._unreadable.pop(key, None)
            self._tell(key, self._drop(key), None)

    def _drop(self, key: Key) -> T | None:
        thing = self._objects.pop(key, None)
        if thing is not None and self._index is not None:
            value = self._index(thing)
            rest = self._by_index.get(value, {})
            rest.pop(key, None)
            if not rest:
                self._by_index.pop(value, None)
        return thing

    def _seen(self, key: Key) -> None:
        if self._listing is not None:
            self._listing.add(key)

    def _tell(self, key: Key, before: T | None, after: T | None) -> None:
        for listener in self._listeners:
            listener(key, before, after)
