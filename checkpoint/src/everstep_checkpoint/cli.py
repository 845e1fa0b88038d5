"""`everstep-checkpoint ls|verify|latest DIR [--json]` and `everstep-checkpoint exec --grace 120 -- torchrun ...`."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import InvalidCheckpointError
from .launcher import launch
from .manifest import Checkpoint, read_manifest, verify
from .vault import Vault


@dataclass(frozen=True, slots=True)
class Row:
    """One directory with a checkpoint's name. `problem` says what is wrong with it, if anything was found."""

    path: Path
    step: int
    found: Checkpoint | None
    pinned: bool
    problem: str | None

    def as_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "path": str(self.path),
            "step": self.step,
            "bytes": found.bytes if found else None,
            "ranks": found.world_size if found else None,
            "saved_at": found.saved_at if found else None,
            "name": found.name if found else None,
            "pinned": self.pinned,
            "ok": self.problem is None,
            "problem": self.problem,
        }


def look(directory: Path, every_byte: bool) -> list[Row]:
    """Every checkpoint of a run, oldest first; reads only. Raises OSError."""
    vault = Vault(directory, "reader")
    pinned, rows = vault.pinned(), []
    for step, name in vault.published():
        path = directory / name
        try:
            found = (verify if every_byte else read_manifest)(path)
            rows.append(Row(path, step, found, name in pinned, None))
        except InvalidCheckpointError as error:
            rows.append(Row(path, step, None, name in pinned, str(error)))
    return rows


def newest(directory: Path) -> Row | None:
    """The newest checkpoint that is sound to the last byte: what the next attempt would resume from. Raises OSError."""
    vault = Vault(directory, "reader")
    for step, name in reversed(vault.published()):
        try:
            return Row(directory / name, step, verify(directory / name), name in vault.pinned(), None)
        except InvalidCheckpointError as error:
            print(f"everstep-checkpoint: passed over: {error}", file=sys.stderr)
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """0: fine. 1: a checkpoint is damaged, or there is none. 2: the arguments or the directory cannot be used."""
    args = _parser().parse_args(argv)
    if args.command == "exec":
        return launch(_program(args), args.grace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")  # a path is printed as the bytes that it is
    try:
        code = _look(args)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 128 + signal.SIGPIPE
    return code


def _look(args: argparse.Namespace) -> int:
    try:
        if args.command == "latest":
            return _latest(args)
        rows = look(args.directory, every_byte=args.command == "verify")
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"everstep-checkpoint: {args.directory}: {error.strerror or error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([row.as_json() for row in rows], indent=1))
    else:
        for row in rows:
            print(_line(row))
        if not rows:
            print(f"no checkpoints in {args.directory}", file=sys.stderr)
    bad = any(row.problem for row in rows)
    return 1 if args.command == "verify" and (bad or not rows) else 0


def _latest(args: argparse.Namespace) -> int:
    row = newest(args.directory)
    if args.json:
        print(json.dumps(row.as_json() if row else None, indent=1))
    elif row is not None:
        print(row.path)
    else:
        print(f"everstep-checkpoint: no sound checkpoint in {args.directory}", file=sys.stderr)
    return 0 if row is not None else 1


def _line(row: Row) -> str:
    if row.found is None:
        return f"{row.path.name}  DAMAGED: {row.problem}"
    when = datetime.fromtimestamp(row.found.saved_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if row.found.saved_at else "-"
    extra = "  pinned" * row.pinned + (f"  {row.found.name!r}" if row.found.name else "")
    return f"{row.path.name}  {row.found.bytes / 1e6:10.1f} MB  {row.found.world_size} ranks  {when}{extra}"


def _program(args: argparse.Namespace) -> list[str]:
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        _parser().error("exec: give a program after --, such as: exec --grace 120 -- torchrun train.py")
    return list(program)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="everstep-checkpoint", description="Look at checkpoints, start training.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("ls", "list the checkpoints of a run: names and sizes are checked, not contents"),
        ("verify", "check every byte of every checkpoint"),
        ("latest", "print the newest checkpoint that is sound to the last byte"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", type=Path)
        command.add_argument("--json", action="store_true", help="print JSON")
    text = "start a launcher so that its ranks can save when told to stop, and keep how the training ended"
    command = commands.add_parser("exec", help=text, description=text)
    command.add_argument("--grace", type=_seconds, default=120.0, metavar="SECONDS",
                         help="seconds between the stop signal and the kill (default %(default)g)")  # fmt: skip
    command.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
