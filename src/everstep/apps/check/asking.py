"""Asking things that may hang, with one deadline for all of them.

The questions run in a child process, those to one owner in a thread with an event loop of its own. A call that never
comes back, be it in a driver or in a dead file server, holds up nothing but answers of that owner; at the deadline the
child is killed, and not waited for: a process that the kernel holds does not die before the kernel lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from everstep.core.errors import EverstepError
from everstep.core.node_check import Answer


@dataclass(frozen=True, slots=True)
class Question:
    """How one source is asked.

    Attributes:
        close: lets go of what was asked, after the answers.
        owner: whom the question is put to; questions to one owner share a thread and its event loop. None: nobody else.
    """

    ask: Callable[[], Awaitable[Answer]]
    close: Callable[[], Awaitable[None]] | None = None
    owner: object = None


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_decoder = msgspec.json.Decoder(Answer)


def ask(questions: Mapping[str, Question], deadline: float) -> list[Answer]:
    """The answers in the order of the questions; one that did not come within ``deadline`` seconds is a problem."""
    give_up = time.monotonic() + deadline
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller: what is printed has no reader
            stream.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _in_child(questions, writer, parent)
    os.close(writer)
    try:
        with open(reader, "rb", buffering=0) as pipe:
            answers = _collected(pipe, len(questions), give_up)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # it may not have made its group yet
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
    late = f"no answer within {deadline:.3g} s" if time.monotonic() >= give_up else "asking it failed without a word"
    return [answers.get(name, Answer(name, problem=late)) for name in questions]


def _collected(pipe: BinaryIO, wanted: int, give_up: float) -> dict[str, Answer]:
    """What the child wrote, one answer a line, until it has ended or the time is up."""
    answers: dict[str, Answer] = {}
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(answers) < wanted and (left := give_up - time.monotonic()) > 0:
            if not selector.select(left):
                continue
            data = pipe.read(1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                answer = _decoder.decode(line)
                answers[answer.source] = answer
    return answers


def _in_child(questions: Mapping[str, Question], writer: int, parent: int) -> None:
    """Never returns: the caller's own code must not run twice."""
    try:
        os.setpgid(0, 0)  # so that what the sources start dies with it
        _die_with(parent)
        pipe = os.fdopen(writer, "wb")
        lock = threading.Lock()
        owners: dict[object, dict[str, Question]] = {}
        for name, question in questions.items():
            owners.setdefault(id(question.owner) if question.owner is not None else name, {})[name] = question
        threads = [threading.Thread(target=_answer, args=(asked, pipe, lock), daemon=True) for asked in owners.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os._exit(0)


def _die_with(parent: int) -> None:
    """A check that is killed, by a prolog's time limit for example, leaves nobody behind who asks on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was too late: nobody waits for answers any more
        os._exit(0)


def _answer(asked: Mapping[str, Question], pipe: BinaryIO, lock: threading.Lock) -> None:
    asyncio.run(_all(asked, pipe, lock))


async def _all(asked: Mapping[str, Question], pipe: BinaryIO, lock: threading.Lock) -> None:
    await asyncio.gather(*(_answered(name, question, pipe, lock) for name, question in asked.items()))
    for close in dict.fromkeys(question.close for question in asked.values()):
        if close is not None:
            await close()


async def _answered(name: str, question: Question, pipe: BinaryIO, lock: threading.Lock) -> None:
    """Writes the answer before the loop ends: that may have to wait for what the question has left running."""
    try:
        answer = await question.ask()
    except EverstepError as why:
        answer = Answer(name, problem=str(why))
    except Exception as why:
        traceback.print_exc()
        answer = Answer(name, problem=f"asking it failed: {type(why).__name__}: {why}")
    with lock, contextlib.suppress(BrokenPipeError):
        pipe.write(msgspec.json.encode(answer) + b"\n")
        pipe.flush()
