"""Slurm's programs as child processes: nothing secret in arguments, bounded in time and output, errors typed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from pathlib import Path

import pytest

from everstep.adapters.slurm import cli
from everstep.adapters.slurm.cli import SlurmCommands
from everstep.adapters.slurm.tokens import LIFETIME_SECONDS, TokenSource, mint
from everstep.core.errors import NotFound, Unreachable


def commands(tmp_path: Path, script: str, timeout: float = 5.0) -> SlurmCommands:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return SlurmCommands(Path("/etc/slurm/slurm.conf"), lambda: "secret", f"{tmp_path}:/usr/bin:/bin", timeout)


def run(tmp_path: Path, script: str, *arguments: str, timeout: float = 5.0) -> str:
    return asyncio.run(commands(tmp_path, script, timeout).run("scontrol", *arguments))


def test_the_token_is_in_the_environment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    output = run(tmp_path, 'printf "%s\\n" "$@"; env', "show", "a;b $(c) 'd'")
    words, environment = output.split("\n")[:2], dict(line.split("=", 1) for line in output.splitlines()[2:])
    assert words == ["show", "a;b $(c) 'd'"]
    assert environment["SLURM_JWT"] == "secret"
    assert environment["SLURM_TIME_FORMAT"] == "%s"
    assert "SQUEUE_FORMAT" not in environment


def test_a_failure_is_typed_and_names_the_command_only(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"^scontrol requeuehold: Invalid job id") as caught:
        run(tmp_path, "echo 'Invalid job id specified for job 9' >&2; exit 1", "requeuehold", "9")
    assert "secret" not in str(caught.value)


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no answer"):
        run(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60", "show", timeout=0.5)
    assert time.monotonic() - began < 5
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="cannot run squeue"):
        asyncio.run(SlurmCommands(Path("x"), lambda: "t", str(tmp_path)).run("squeue"))


def test_too_much_output_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "OUTPUT_LIMIT", 1000)
    with pytest.raises(Unreachable, match="more than 1000 bytes"):
        run(tmp_path, "head -c 200000 /dev/zero", "show")


def test_a_token_says_who_until_when_and_is_signed() -> None:
    header, claims, signature = mint(b"key", "root", 1000.9, 60).split(".")
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == {"exp": 1060, "iat": 1000, "sun": "root"}
    wanted = hmac.new(b"key", f"{header}.{claims}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "==") == wanted


def test_tokens_are_renewed_at_half_of_their_life_with_the_present_key(tmp_path: Path) -> None:
    now = [1000.0]
    key = tmp_path / "jwt.key"
    key.write_bytes(b"one")
    source = TokenSource(key, "root", lambda: now[0])
    first = source.token()
    key.write_bytes(b"two")
    now[0] += LIFETIME_SECONDS / 2 - 1
    assert source.token() == first
    now[0] += 2
    assert source.token() == mint(b"two", "root", now[0])


def test_without_its_key_slurm_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        TokenSource(tmp_path / "none", "root").token()
    (tmp_path / "empty").touch()
    with pytest.raises(Unreachable):
        TokenSource(tmp_path / "empty", "root").token()
