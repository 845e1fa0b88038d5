"""Data-parallel training with nothing but numpy, which survives the loss of a node: `srun python3 train.py --dir DIR`.

A small network learns a made-up data set on as many ranks as Slurm (or RANK and WORLD_SIZE) says; the gradients are
averaged over plain TCP, always added in the order of the ranks, so that two runs agree to the last bit. Shuffling,
noise, dropout and momentum are there because they go wrong when a restore forgets something.

What Everstep needs are the lines with `run`. Everything else is ordinary training.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the order of a sum must not depend on the machine's load

import numpy as np

from everstep_checkpoint import Every, Run, arrays

INPUTS, HIDDEN, CLASSES, SAMPLES, BATCH = 32, 64, 10, 4096, 64
LEARNING_RATE, MOMENTUM, DROPOUT, NOISE = 0.05, 0.9, 0.2, 0.1


class Peers:
    """All ranks, connected to rank 0. `average` is the one collective."""

    def __init__(self, rank: int, size: int, host: str) -> None:
        self.rank, self.size = rank, size
        self._sockets: list[socket.socket] = []
        job, restart = os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("SLURM_RESTART_COUNT", "0")
        step, master_port = os.environ.get("SLURM_STEP_ID", "0"), os.environ.get("MASTER_PORT", "0")
        launch = f"{job}.{restart}.{step}.{master_port}"
        self._hello = hashlib.sha256(launch.encode()).digest()
        # Another port for every attempt: a process left over from the last one may still hold the old one.
        port = 28000 + struct.unpack("<I", self._hello[:4])[0] % 4000
        if size > 1:
            if rank == 0:
                self._listen(port)
            else:
                self._connect(host, port)

    def average(self, mine: np.ndarray) -> np.ndarray:
        """Mean over the ranks of an array of equal shape everywhere; bit for bit the same on every rank."""
        if self.size == 1:
            return mine
        try:
            if self.rank > 0:
                self._sockets[0].sendall(mine.tobytes())
                return np.frombuffer(self._take(self._sockets[0], mine.nbytes), mine.dtype).reshape(mine.shape)
            total = mine.copy()
            for peer in self._sockets:
                total += np.frombuffer(self._take(peer, mine.nbytes), mine.dtype).reshape(mine.shape)
            total /= self.size
            for peer in self._sockets:
                peer.sendall(total.tobytes())
            return total
        except OSError as error:
            # Without all ranks there is nothing to compute: end at once, and let the scheduler start all anew.
            raise SystemExit(f"rank {self.rank}: lost a peer ({error})") from error

    def _listen(self, port: int) -> None:
        with socket.create_server(("", port), backlog=self.size) as server:
            server.settimeout(300)
            by_rank: dict[int, socket.socket] = {}
            while len(by_rank) < self.size - 1:
                peer, _ = server.accept()
                peer.settimeout(30)
                try:
                    if self._take(peer, 32) == self._hello:
                        by_rank[struct.unpack("<I", self._take(peer, 4))[0]] = self._tuned(peer)
                except OSError:
                    peer.close()
        self._sockets = [by_rank[rank] for rank in sorted(by_rank)]

    def _connect(self, host: str, port: int) -> None:
        deadline = time.monotonic() + 300
        while not self._sockets:
            try:
                peer = self._tuned(socket.create_connection((host, port), timeout=5))
                peer.sendall(self._hello + struct.pack("<I", self.rank))
                self._sockets = [peer]
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"rank {self.rank}: rank 0 does not answer ({error})") from error
                time.sleep(0.1)

    @staticmethod
    def _tuned(peer: socket.socket) -> socket.socket:
        """No timeout of its own, but a vanished host is noticed within about 10 seconds."""
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)
        return peer

    @staticmethod
    def _take(peer: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = peer.recv(count - len(data))
            if not chunk:
                raise ConnectionResetError("the connection was closed")
            data += chunk
        return bytes(data)


class Shuffled:
    """The data set in a new random order every epoch; each rank takes its own slice of every batch."""

    def __init__(self, rank: int, size: int) -> None:
        maker = np.random.default_rng(20240229)
        self.inputs = maker.standard_normal((SAMPLES, INPUTS))
        teacher = np.tanh(self.inputs @ maker.standard_normal((INPUTS, 24))) @ maker.standard_normal((24, CLASSES))
        self.labels = teacher.argmax(axis=1)
        self._rank, self._whole = rank, BATCH * size
        self._shuffler = np.random.default_rng(7)
        self._order = self._shuffler.permutation(SAMPLES)
        self._position = 0

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        if self._position + self._whole > SAMPLES:
            self._order, self._position = self._shuffler.permutation(SAMPLES), 0
        start = self._position + self._rank * BATCH
        self._position += self._whole
        chosen = self._order[start : start + BATCH]
        return self.inputs[chosen], self.labels[chosen]

    def state_dict(self) -> dict:
        return {"bits": self._shuffler.bit_generator.state, "order": self._order, "position": self._position}

    def load_state_dict(self, saved: dict) -> None:
        self._shuffler.bit_generator.state = saved["bits"]
        self._order, self._position = saved["order"], saved["position"]


def new_weights() -> dict[str, np.ndarray]:
    maker = np.random.default_rng(1)
    return {
        "w1": maker.standard_normal((INPUTS, HIDDEN)) / np.sqrt(INPUTS),
        "b1": np.zeros(HIDDEN),
        "w2": maker.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "b2": np.zeros(CLASSES),
    }


def gradients(
    weights: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray, dropout: np.random.Generator
) -> tuple[float, dict[str, np.ndarray]]:
    """Cross-entropy of one batch, and its derivative by every weight."""
    inputs = inputs + NOISE * np.random.standard_normal(inputs.shape)  # the global generator: saved without being named
    keep = (dropout.random((len(inputs), HIDDEN)) >= DROPOUT) / (1 - DROPOUT)
    hidden = np.tanh(inputs @ weights["w1"] + weights["b1"])
    dropped = hidden * keep
    scores = dropped @ weights["w2"] + weights["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels]).mean())
    chances[rows, labels] -= 1
    by_scores = chances / len(labels)
    by_hidden = (by_scores @ weights["w2"].T) * keep * (1 - hidden**2)
    return loss, {
        "w1": inputs.T @ by_hidden,
        "b1": by_hidden.sum(axis=0),
        "w2": dropped.T @ by_scores,
        "b2": by_scores.sum(axis=0),
    }


def fill_time(until: float, busy_until: float) -> None:
    """Make the step as long as that of a large model: compute for a part of it, wait for the rest."""
    block = np.ones((96, 96))
    while time.monotonic() < min(until, busy_until):
        block = block @ block / 96.0
    time.sleep(max(0.0, until - time.monotonic()))


class Losses:
    """One line a step on rank 0, `{"attempt", "step", "loss"}`, the loss as float hex.

    Each attempt has its own file: for a step that two attempts trained, the later attempt's line counts.
    """

    def __init__(self, directory: Path, run: Run) -> None:
        self._attempt = run.attempt
        self._fd = -1
        if run.world.rank == 0:
            folder = directory / "losses"
            folder.mkdir(exist_ok=True)
            path = folder / f"attempt-{run.attempt:04d}.jsonl"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, step: int, loss: float) -> None:
        """Straight to the file: what is still in a buffer when the process is killed would be missing."""
        if self._fd >= 0:
            line = json.dumps({"attempt": self._attempt, "step": step, "loss": loss.hex()})
            os.write(self._fd, f"{line}\n".encode())


def disobey(args: argparse.Namespace) -> None:
    """For trying out how the platform treats programs that do not save when they are told to stop."""
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.quit_on_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def train(args: argparse.Namespace, rank: int, size: int) -> None:
    directory = Path(args.dir).expanduser()
    weights = new_weights()
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    data = Shuffled(rank, size)
    dropout = np.random.default_rng(100 + rank)
    np.random.seed(200 + rank)
    state = {
        "weights": arrays(weights),
        "velocity": arrays(velocity),
        "data": data,
        "dropout": dropout,
        "size of a large model": (lambda: time.sleep(args.save_seconds), lambda nothing: None),
    }
    every = Every(steps=args.save_every_steps) if args.save_every_steps else Every(seconds=args.save_every)
    with Run(directory, state=state, keep=args.keep, grace=args.grace, every=every) as run:
        disobey(args)
        peers = Peers(rank, size, run.rank0_address)
        losses = Losses(directory, run)
        said = 0.0
        if rank == 0:
            print(f"attempt {run.attempt}: {size} ranks, from step {run.resumed_from or 0} to {args.steps}", flush=True)
        for step in run.steps(args.steps):
            began = time.monotonic()
            loss, slopes = gradients(weights, *data.next_batch(), dropout)
            flat = peers.average(np.concatenate([[loss], *(slopes[name].ravel() for name in weights)]))
            loss, start = float(flat[0]), 1
            for name, value in weights.items():
                slope = flat[start : start + value.size].reshape(value.shape)
                start += value.size
                velocity[name][...] = MOMENTUM * velocity[name] + slope
                weights[name] -= LEARNING_RATE * velocity[name]
            fill_time(began + args.step_time, began + args.step_time * args.busy)
            losses.add(step + 1, loss)
            run.report(loss=loss)
            if rank == 0 and time.monotonic() - said >= 1.0:
                said = time.monotonic()
                print(f"step {step + 1}/{args.steps} loss {loss:.4f}", flush=True)
    if rank == 0:
        print(f"{run.outcome} after step {run.saved_step}", flush=True)
        if run.outcome == "finished":
            digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
            result = {"steps": args.steps, "weights_sha256": digest}
            (directory / "result.json").write_text(json.dumps(result))


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, help="directory that all ranks share: checkpoints, losses, result")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole training (default %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds a step takes at least (%(default)s)")
    parser.add_argument("--busy", type=float, default=0.3, help="part of the step time spent computing (%(default)s)")
    parser.add_argument("--save-every", type=float, default=60.0, help="seconds between two saves (%(default)s)")
    parser.add_argument("--save-every-steps", type=int, default=0, help="the same in steps, instead")
    parser.add_argument("--save-seconds", type=float, default=0.0, help="seconds a save takes at least (%(default)s)")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints kept (%(default)s)")
    parser.add_argument("--grace", type=float, default=120.0, help="seconds from SIGTERM to SIGKILL (%(default)s)")
    parser.add_argument("--ignore-sigterm", action="store_true", help="train on until killed")
    parser.add_argument("--quit-on-sigterm", action="store_true", help="end with exit code 0 at once, saving nothing")
    return parser.parse_args(argv)


def main() -> None:
    env = os.environ
    # Only srun sets the first one: a program that the batch script starts without srun is a single rank.
    size = int(env.get("SLURM_STEP_NUM_TASKS") or env.get("WORLD_SIZE") or 1)
    rank = int(env.get("SLURM_PROCID", "0") if "SLURM_STEP_NUM_TASKS" in env else env.get("RANK", "0"))
    train(arguments(sys.argv[1:]), rank, size)


if __name__ == "__main__":
    main()
