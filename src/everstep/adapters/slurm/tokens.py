"""Slurm's own tokens (auth/jwt, HS256), minted from the cluster's key: no munge and no shared socket needed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path

from everstep.core.errors import Unreachable

# Short, because whoever reads this process's memory holds it; long against a controller that is busy for a minute.
LIFETIME_SECONDS = 600.0


def mint(key: bytes, user: str, issued_at: float, lifetime: float = LIFETIME_SECONDS) -> str:
    """A token that Slurm accepts for ``user``; the same three claims as ``scontrol token`` writes.

    Args:
        key: the raw bytes of the file that ``AuthAltParameters=jwt_key=`` names.
        issued_at: Unix seconds.
        lifetime: seconds.
    """
    header = _part({"alg": "HS256", "typ": "JWT"})
    claims = _part({"exp": int(issued_at + lifetime), "iat": int(issued_at), "sun": user})
    signed = f"{header}.{claims}"
    return f"{signed}.{_base64(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def _part(value: dict[str, str | int]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class TokenSource:
    """Mints when asked and renews at half of the lifetime; reads the key anew each time, so that it can be rotated."""

    def __init__(self, key_file: Path, user: str, now: Callable[[], float] = time.time) -> None:
        self._key_file = key_file
        self._user = user
        self._now = now
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        """Raises Unreachable when the key cannot be read: then Slurm cannot be asked."""
        now = self._now()
        if now >= self._renew_at:
            try:
                key = self._key_file.read_bytes()
            except OSError as error:
                raise Unreachable(f"cannot read Slurm's JWT key: {error}") from None
            if not key:
                raise Unreachable(f"Slurm's JWT key {self._key_file} is empty")
            self._token = mint(key, self._user, now)
            self._renew_at = now + LIFETIME_SECONDS / 2
        return self._token
