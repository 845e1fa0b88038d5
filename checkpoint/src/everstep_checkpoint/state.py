"""What a checkpoint holds: the objects the user names, and the random number generators nobody remembers to name."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .errors import StateMismatchError

Getter = Callable[[], Any]
Setter = Callable[[Any], None]
Entry = tuple[Getter, Setter]


class arrays:  # lower case, as it reads at the call: state={"w": arrays(weights)}
    """A dict of numpy arrays, saved as they are and restored in place.

    Keys, shapes and dtypes must be the same at restore; StateMismatchError otherwise. Raises TypeError, at once and not
    when it is restored, for what cannot be restored in place: numbers, and arrays that are read-only.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held
        self._check()

    def state_dict(self) -> dict[str, Any]:
        self._check()
        return dict(self._held)

    def _check(self) -> None:
        for name, value in self._held.items():
            parts = all(hasattr(value, part) for part in ("shape", "dtype", "__setitem__"))
            if not (parts and getattr(getattr(value, "flags", None), "writeable", True)):
                what = f"a read-only {type(value).__name__}" if parts else f"a {type(value).__name__}"
                raise TypeError(
                    f"arrays: {name!r} is {what}, which cannot be restored in place: make it a numpy.array(...), or"
                    " give a (get, set) pair"
                )

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        if saved.keys() != self._held.keys():
            odd = sorted(saved.keys() ^ self._held.keys(), key=repr)
            raise StateMismatchError(f"arrays {odd} are only in one of checkpoint and program: name the same arrays")
        for name, value in saved.items():
            here = self._held[name]
            if here.shape != value.shape or here.dtype != value.dtype:
                raise StateMismatchError(
                    f"array {name!r} is {value.dtype}{list(value.shape)} in the checkpoint"
                    f" but {here.dtype}{list(here.shape)} in the program"
                )
        for name, value in saved.items():
            self._held[name][...] = value


def _generator_entry(generator: Any) -> Entry:
    """A numpy Generator: all of its state is in its bit generator."""

    def put(saved: Any) -> None:
        generator.bit_generator.state = saved

    return (lambda: generator.bit_generator.state), put


def entry_of(name: str, item: Any) -> Entry:
    """Turn what the user gave into a (get, set) pair. Raises TypeError for what cannot be saved."""
    if isinstance(item, tuple) and len(item) == 2 and all(callable(part) for part in item):
        return item
    if hasattr(item, "state_dict") and hasattr(item, "load_state_dict"):
        return item.state_dict, item.load_state_dict
    if hasattr(item, "bit_generator"):
        return _generator_entry(item)
    if isinstance(item, random.Random):
        return item.getstate, item.setstate
    raise TypeError(
        f"state {name!r} is a {type(item).__name__}: give an object with state_dict/load_state_dict, a (get, set) pair,"
        " arrays(a dict of numpy arrays), or a random generator"
    )


def _random_states() -> dict[str, Any]:
    """The process-wide generators of those libraries that this program has loaded."""
    states: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _put_random_states(states: Mapping[str, Any]) -> None:
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy  # noqa: PLC0415 - only a program that had numpy loaded saved this, and only it needs it

        numpy.random.set_state(states["numpy"])
    if "torch" in states:
        import torch  # noqa: PLC0415 - as above

        torch.set_rng_state(states["torch"])
        if "cuda" in states:
            torch.cuda.set_rng_state_all(states["cuda"])


class State:
    """The named entries of one rank, and the random generators around them."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._entries = {name: entry_of(name, item) for name, item in items.items()}
        self._random: Mapping[str, Any] | None = None

    def capture(self) -> dict[str, Any]:
        """The present state. Holds references, not copies: write it out before the training goes on."""
        return {
            "entries": {name: get() for name, (get, _) in self._entries.items()},
            "random": _random_states(),
        }

    def restore(self, captured: Mapping[str, Any]) -> None:
        """Put a captured state back, the random generators last. Raises StateMismatchError."""
        entries = captured["entries"]
        if entries.keys() != self._entries.keys():
            odd = sorted(entries.keys() ^ self._entries.keys(), key=repr)
            raise StateMismatchError(
                f"state {odd} is only in one of checkpoint and program: name the same state, or use a new directory"
            )
        for name, (_, put) in self._entries.items():
            put(entries[name])
        self._random = captured["random"]
        _put_random_states(self._random)

    def restore_random(self) -> None:
        """Put the restored random generators back once more, as the first step begins.

        Between restore and the first step programs draw numbers too (they shuffle, they initialise): an uninterrupted
        run drew those long before this point.
        """
        if self._random is not None:
            _put_random_states(self._random)
            self._random = None
