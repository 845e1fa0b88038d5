"""A read of Slurm is repeated when its connection breaks, and not when Slurm is away or has answered."""

from __future__ import annotations

import asyncio
import time

import pytest

from everstep.adapters.slurm import reads
from everstep.adapters.slurm.reads import SlurmReads
from everstep.core.errors import EverstepError, NotFound, RetryLater, Unreachable

VERSION = "SLURM_VERSION           = 24.11.5\n"


class Answers:
    """Gives the answers in turn, and notes what was asked."""

    def __init__(self, *answers: str | EverstepError) -> None:
        self.left = list(answers)
        self.asked: list[tuple[str, ...]] = []

    async def run(self, program: str, *arguments: str) -> str:
        self.asked.append((program, *arguments))
        answer = self.left.pop(0)
        if isinstance(answer, EverstepError):
            raise answer
        return answer


@pytest.mark.parametrize("error", [Unreachable("Connection reset by peer"), RetryLater("a text of some later Slurm")])
def test_one_broken_connection_is_not_noticed(error: EverstepError) -> None:
    slurm = Answers(error, VERSION)
    assert asyncio.run(SlurmReads(slurm).version()) == "24.11.5"
    assert slurm.asked == [("scontrol", "show", "config")] * 2


def test_two_are() -> None:
    error = Unreachable("Connection reset by peer")
    with pytest.raises(Unreachable, match="reset"):
        asyncio.run(SlurmReads(Answers(error, error)).version())


def test_who_waited_for_nothing_is_not_made_to_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_AT_ONCE", 0.01)

    class Away(Answers):
        async def run(self, program: str, *arguments: str) -> str:
            self.asked.append((program, *arguments))
            time.sleep(0.02)
            raise Unreachable("Unable to contact slurm controller")

    slurm = Away()
    with pytest.raises(Unreachable, match="contact"):
        asyncio.run(SlurmReads(slurm).version())
    assert len(slurm.asked) == 1


def test_an_answer_is_an_answer() -> None:
    slurm = Answers(NotFound("Invalid node name specified"))
    with pytest.raises(NotFound):
        asyncio.run(SlurmReads(slurm).node("gpu-7"))
    assert len(slurm.asked) == 1
