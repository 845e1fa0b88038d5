"""Saves after every step and deletes what is old, until killed; the state is a function of the step."""

import sys
from pathlib import Path

from everstep_checkpoint import Every, Run

SIZE = 300_000


def content(step: int, part: int) -> bytes:
    return (step * 9 + part).to_bytes(4, "big") * (SIZE // 4)


def main() -> None:
    held = {"step": 0}

    def put(saved: tuple[int, list[bytes]]) -> None:
        step, parts = saved
        assert parts == [content(step, part) for part in range(3)], "resumed from garbage"
        held["step"] = step

    state = {"all": (lambda: (held["step"], [content(held["step"], part) for part in range(3)]), put)}
    store = sys.argv[2] if len(sys.argv) > 2 else None
    with Run(Path(sys.argv[1]), state=state, keep=2, every=Every(steps=1), store=store) as run:
        assert held["step"] == (run.resumed_from or 0), "the state is not that of the step in the name"
        print(run.resumed_from or 0, flush=True)
        for step in run.steps(1_000_000):
            held["step"] = step + 1


if __name__ == "__main__":
    main()
