"""A network that loses single packets and connections of a node's pods, chosen by their number.

For tests and benchmarks: what is lost is lost once, at a known place, so that what it costs can be seen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from everstep.core.slurm_conf import CONTROLLER_PORT
from everstep.lab.cluster import Lab
from everstep.lab.errors import LabError

_CLOSING_PORT = 7817
_MARK = ("-m", "comment", "--comment", "everstep-loss")
# Takes connections and closes them until its input ends; says when it is there.
_CLOSER = """
import select, socket, sys
door = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("open", flush=True)
while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
    door.accept()[0].close()
"""


class Loss(Enum):
    """What is lost: iptables' table and chain, the packets that count, and what becomes of the chosen one."""

    CONNECTION_CLOSED = (
        "nat",
        "PREROUTING",
        f"-p tcp --dport {CONTROLLER_PORT}",
        f"REDIRECT --to-ports {_CLOSING_PORT}",
    )
    CONNECTION_REFUSED = (
        "filter",
        "FORWARD",
        f"-p tcp --dport {CONTROLLER_PORT} --syn",
        "REJECT --reject-with tcp-reset",
    )
    CONNECTION_UNANSWERED = ("raw", "PREROUTING", f"-p tcp --dport {CONTROLLER_PORT} --syn", "DROP")
    DNS_QUERY = ("raw", "PREROUTING", "-p udp --dport 53", "DROP")


@contextmanager
def losing(lab: Lab, node: str, loss: Loss, *numbers: int) -> Iterator[Callable[[], int]]:
    """Loses these of the node's pods' connections to slurmctld, or of their questions to the DNS; 0 is the next one.

    Yields a function that says how many were lost so far. Raises LabError.
    """
    table, chain, packets, target = loss.value
    argv = lab.inside(node, sys.executable, "-c", _CLOSER, str(_CLOSING_PORT))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as closer:
        try:
            assert closer.stdout is not None
            if closer.stdout.readline() != "open\n":
                raise LabError(f"port {_CLOSING_PORT} of {node} is taken: are its connections closed by somebody else?")
            for number in numbers:
                nth = f"-m statistic --mode nth --every 1000000 --packet {number}"
                rule = [*packets.split(), *nth.split(), *_MARK, "-j", *target.split()]
                lab.execute(node, "iptables", "-w", "5", "-t", table, "-I", chain, *rule)
            yield lambda: sum(_hits(lab, node, table, chain))
        finally:
            for _ in _hits(lab, node, table, chain):
                lab.execute(node, "iptables", "-w", "5", "-t", table, "-D", chain, "1")
            closer.communicate()


def _hits(lab: Lab, node: str, table: str, chain: str) -> list[int]:
    """What each of our rules has caught; they are the first of the chain."""
    lines = lab.execute(node, "iptables", "-w", "5", "-t", table, "-nvxL", chain).splitlines()
    return [int(line.split()[0]) for line in lines if "everstep-loss" in line]
