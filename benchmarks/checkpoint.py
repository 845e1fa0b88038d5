"""What everstep-checkpoint costs on this machine, beside raw writes and, where torch is installed, torch's own saves.

    .venv/bin/python benchmarks/checkpoint.py [--megabytes 1000] [--dir DIR] [--json FILE]

Each figure stands beside its target. The copy and the disk share the machine with whatever else runs on it: compare
the columns of one run, not of two.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from everstep_checkpoint import Every, Run, arrays
from everstep_checkpoint.vault import Vault

ROUNDS = 5


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def poll_and_report(folder: Path) -> float:
    """Seconds a step: the median, so that what other programs do on this machine is not counted."""
    marks = []
    with Run(folder, state={}) as run:
        for _ in run.steps(50_000):
            marks.append(time.perf_counter())
            run.report(loss=1.0)
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(marks))


def state_of(megabytes: int) -> dict[str, np.ndarray]:
    parts = 16
    return {f"w{part}": np.random.default_rng(part).random(megabytes * 125_000 // parts) for part in range(parts)}


def raw_write(folder: Path, held: dict[str, np.ndarray]) -> None:
    fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(fd, "wb", buffering=0) as file:
        for value in held.values():
            view = memoryview(value).cast("B")
            while view:
                view = view[file.write(view[: 8 << 20]) :]
        os.fsync(fd)
    (folder / "raw").unlink()


def torch_save(folder: Path, held: dict[str, np.ndarray]) -> None:
    import torch  # noqa: PLC0415 - optional

    with open(folder / "plain.pt", "wb") as file:
        torch.save({name: torch.from_numpy(value) for name, value in held.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / "plain.pt").unlink()


def saves(folder: Path, held: dict[str, np.ndarray]) -> tuple[list[dict], dict[str, float]]:
    """One record's committed saves: the first pays for fresh memory, the others show the rule; and others' times.

    The others write between the saves: a disk that is used by more than us is not the same a minute later.
    """
    others = {"raw": raw_write} | ({"torch.save": torch_save} if importlib.util.find_spec("torch") else {})
    times: dict[str, list[float]] = {name: [] for name in others}
    with Run(folder, state={"w": arrays(held)}, keep=2, every=Every(steps=1, background=True)) as run:
        for _ in run.steps(ROUNDS + 1):
            run._saver.wait()
            for name, write in others.items():
                times[name].append(seconds(lambda write=write: write(folder, held)))
            held["w0"] += 1
    path = next((folder / "records").glob("*.jsonl"))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    committed = [event for event in found if event.get("phase") == "committed"]
    return committed, {name: statistics.median(taken) for name, taken in times.items()}


def stop(folder: Path, held: dict[str, np.ndarray], step_time: float) -> tuple[float, float]:
    """Seconds from SIGTERM to the boundary it stops at, and to the published checkpoint."""
    told, at = [], []
    state = {"w": arrays(held), "mark": (lambda: at.append(time.perf_counter()), lambda nothing: None)}
    with Run(folder, state=state, every=Every(seconds=3600.0)) as run:
        for step in run.steps(10_000):
            if step == 5:
                told.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(step_time)
    return at[0] - told[0], time.perf_counter() - told[0]


def choose(folder: Path) -> float:
    """Seconds to find the newest of 100 checkpoints sound."""
    with Run(folder, state={"x": (lambda: bytes(10_000), lambda saved: None)}, keep=1000, every=Every(steps=1)) as run:
        list(run.steps(100))
    return seconds(Vault(folder, "reader").newest_valid)


def dcp_saves(folder: Path, held: dict[str, np.ndarray]) -> tuple[float, float]:
    """Seconds that torch.distributed.checkpoint.async_save stalls, and until it is done; medians of three."""
    import torch  # noqa: PLC0415 - optional
    import torch.distributed as dist  # noqa: PLC0415
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415

    state = {name: torch.from_numpy(value) for name, value in held.items()}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    stalls, wholes = [], []
    for round_ in range(3):
        began = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=str(folder / f"dcp-{round_}"))
        stalls.append(time.perf_counter() - began)
        future.result()
        wholes.append(time.perf_counter() - began)
        shutil.rmtree(folder / f"dcp-{round_}")
    dist.destroy_process_group()
    return statistics.median(stalls), statistics.median(wholes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200, help="size of the state (default %(default)s)")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-", dir=args.dir))
    try:
        rows = measure(folder, args.megabytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in rows:
        print(f"{row['what']:<52} {row['value']:>12}   {row['target']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def measure(folder: Path, megabytes: int) -> list[dict]:
    held, gigabytes = state_of(megabytes), megabytes / 1000
    step_cost = poll_and_report(folder / "poll")
    events, others = saves(folder / "saves", held)
    stall = statistics.median(event["stall_s"] for event in events[1:])
    write = statistics.median(event["write_s"] for event in events[1:])
    least = 0.8 * gigabytes / others["raw"]
    to_step, to_saved = stop(folder / "stop", held, 0.02)
    rows = [
        ("poll and report, a step", f"{step_cost * 1e6:.2f} us", "<= 5 us, no collective"),
        (
            f"stall of a periodic save of {megabytes} MB",
            f"{stall * 1e3:.1f} ms",
            f"<= {gigabytes / 5 * 1e3 + 5:.0f} ms",
        ),
        ("  the first, into fresh memory", f"{events[0]['stall_s'] * 1e3:.1f} ms", ""),
        ("raw write and fsync", f"{gigabytes / others['raw']:.2f} GB/s", ""),
        ("verified write, published", f"{gigabytes / write:.2f} GB/s", f">= {least:.2f} GB/s (80 %), >= torch.save"),
        ("SIGTERM to the agreed step, steps of 20 ms", f"{to_step * 1e3:.0f} ms", "<= 140 ms (2 steps + 100 ms)"),
        (f"SIGTERM to a published checkpoint of {megabytes} MB", f"{to_saved:.2f} s", "<= 3 s for 1000 MB"),
        ("choosing among 100 checkpoints", f"{choose(folder / 'many') * 1e3:.0f} ms", "<= 1000 ms"),
    ]
    if torch := others.get("torch.save"):
        stalled, whole = dcp_saves(folder, held)
        rows += [
            ("torch.save and fsync", f"{gigabytes / torch:.2f} GB/s", f"ours is {torch / write:.2f} times as fast"),
            ("torch dcp.async_save, stall", f"{stalled * 1e3:.1f} ms", f"ours is {stall / stalled:.2f} of it"),
            (
                "torch dcp.async_save, whole",
                f"{gigabytes / whole:.2f} GB/s",
                f"ours is {whole / write:.2f} times as fast",
            ),
        ]
    return [{"what": what, "value": value, "target": target} for what, value, target in rows]


if __name__ == "__main__":
    main()
