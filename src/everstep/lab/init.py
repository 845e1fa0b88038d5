"""First process of a lab node (and of the control plane): sets the stage, starts the daemons, starts them again.

Run as `python -I -S init.py SPEC` inside new mount, pid, uts and network namespaces; standard library only, so that it
costs 10 MB and needs nothing of the environment. SPEC is JSON (see `Spec` in nodes.py): hostname, cgroup and
hierarchies, mounts (argument lists of mount(8)), daemons. Every start and every death of a daemon is one JSON line on
stdout, which the supervisor reads; like systemd on a real node, a daemon that dies is started again a second later.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

CLONE_NEWCGROUP = 0x02000000
RESTART_DELAY = 1.0
READY_DEADLINE = 60.0
Daemon = dict[str, Any]


def report(**fields: object) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more: the node goes on
        os.write(1, (json.dumps(fields) + "\n").encode())


def enter_cgroups(relative: str, roots: dict[str, str]) -> None:
    """Joins the node's groups and makes them the root of what is seen here."""
    for root in roots:
        with open(f"{root}/{relative}/cgroup.procs", "w") as procs:
            procs.write("0")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWCGROUP)")
    for root, kind in roots.items():
        subprocess.run(["mount", "--bind", f"{root}/{relative}", root], check=True)
        if kind == "cgroup2" and root == "/sys/fs/cgroup":
            # v2: a group with controllers for its children may hold no process itself.
            os.mkdir(f"{root}/init")
            with open(f"{root}/init/cgroup.procs", "w") as procs:
                procs.write("0")
            with open(f"{root}/cgroup.controllers") as controllers:
                wanted = " ".join(f"+{name}" for name in controllers.read().split())
            with open(f"{root}/cgroup.subtree_control", "w") as control:
                control.write(wanted)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def runtime_answers(path: str) -> bool:
    """Asks the container runtime for its version, as the kubelet does when it starts, and dies if it hears nothing.

    That its socket accepts says little: it listens a second before it serves. One gRPC call by hand (HTTP/2 with
    uncompressed headers), because there is only the standard library here: an answer has a DATA frame, an error none.
    """
    names = {
        ":method": "POST", ":scheme": "http", ":path": "/runtime.v1.RuntimeService/Version", ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    headers = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in names.items()
    )
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(2)
        link.connect(path)
        link.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")
            + frame(1, 4, 1, headers)
            + frame(0, 1, 1, bytes(5))
        )
        with link.makefile("rb") as answer:
            while len(head := answer.read(9)) == 9:
                payload = answer.read(int.from_bytes(head[:3], "big"))
                kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
                if stream == 1 and kind == 0 and payload:
                    return True
                if stream == 1 and (kind == 3 or flags & 1):  # reset, or the end without data
                    return False
    return False


def answers(address: str) -> bool:
    """`cri:/path` is a container runtime, `/path` a file that must exist, `host:port` a TCP address."""
    try:
        if address.startswith("cri:"):
            return runtime_answers(address.removeprefix("cri:"))
        if address.startswith("/"):
            return os.path.exists(address)
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 1):
            pass
    except OSError:
        return False
    return True


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def start(daemon: Daemon, environment: dict[str, str]) -> int | None:
    """Starts a daemon and returns its pid; None if it could not be started."""
    with open(daemon["log"], "ab") as log:
        try:
            process = subprocess.Popen(
                daemon["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=unblock,  # noqa: PLW1509 - there are no threads here, and the mask must not be inherited
                start_new_session=True,
            )
        except OSError as error:  # a program that is not there is as dead as one that ended
            log.write(f"cannot start {daemon['argv'][0]}: {error}\n".encode())
            report(event="exited", daemon=daemon["name"], pid=0, code=127)
            return None
    process.returncode = 0  # reaped below, with everybody else's orphans
    report(event="started", daemon=daemon["name"], pid=process.pid)
    return process.pid


def reap(running: dict[int, Daemon]) -> list[Daemon]:
    """Collects every dead child; returns the daemons among them."""
    dead: list[Daemon] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not pid:
            return dead
        if daemon := running.pop(pid, None):
            report(event="exited", daemon=daemon["name"], pid=pid, code=os.waitstatus_to_exitcode(status))
            dead.append(daemon)


def main() -> None:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(spec["hostname"])
    enter_cgroups(spec["cgroup"], spec["hierarchies"])
    for arguments in spec["mounts"]:
        if arguments[0] == "mkdir":
            os.makedirs(arguments[1], exist_ok=True)
        else:
            subprocess.run(["mount", *arguments], check=True)
    running: dict[int, Daemon] = {}
    waiting: list[tuple[float, Daemon]] = [(0.0, daemon) for daemon in spec["daemons"]]
    slow: dict[str, float] = {}
    while True:
        later: list[tuple[float, Daemon]] = []
        for due, daemon in waiting:
            name, first = daemon["name"], slow.setdefault(daemon["name"], time.monotonic())
            if time.monotonic() < due or not all(answers(address) for address in daemon["after"]):
                if time.monotonic() - first > READY_DEADLINE:
                    report(event="waiting", daemon=name, on=daemon["after"])
                    slow[name] = time.monotonic()
                later.append((due, daemon))
                continue
            del slow[name]
            if pid := start(daemon, spec["environment"]):
                running[pid] = daemon
            else:
                later.append((time.monotonic() + RESTART_DELAY, daemon))
        waiting = later
        signal.sigtimedwait({signal.SIGCHLD}, 0.05 if waiting else 3600.0)
        waiting += [(time.monotonic() + RESTART_DELAY, daemon) for daemon in reap(running)]


if __name__ == "__main__":
    main()
