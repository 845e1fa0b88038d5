"""Sockets in odd places: in another network namespace, and at paths longer than a Unix socket's name may be."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000  # linux/sched.h
BACKLOG = 128


def listen_tcp(host: str, port: int, namespace: str | None) -> socket.socket:
    """A listening socket that belongs to ``namespace`` for its whole life, while this process stays where it is.

    Raises:
        OSError: no such namespace, no right to enter it, or the address is taken; the text names the address.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:  # setns moves one thread only, and this thread ends here
        return thread.submit(_listen_tcp, host, port, namespace).result()


def _listen_tcp(host: str, port: int, namespace: str | None) -> socket.socket:
    if namespace is not None:
        _enter(namespace)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"the machine API cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns exists only from Python 3.12 on
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter network namespace {namespace}: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def listen_unix(path: Path) -> socket.socket:
    """A listening socket at ``path`` that only its owner may use; replaces what a killed process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(path) as name:
            mask = os.umask(0o177)
            try:
                listener.bind(name)
            finally:
                os.umask(mask)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for ``path`` of under 40 characters, valid inside the block: a socket's own may have 107 at most."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
