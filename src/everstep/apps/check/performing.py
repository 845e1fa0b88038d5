"""One whole check, from what is asked for to the verdict. The command line and the light entry point both call it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from everstep.adapters.gpu.catalog_files import catalog_with
from everstep.adapters.node.deadlines import Asking
from everstep.apps.agent.local_sources import SourceOptions, line_source, state_sources
from everstep.apps.agent.local_sources import from_environment as node_settings
from everstep.apps.check.asking import Question, ask
from everstep.apps.check.questions import KERNEL_LOG, Rules, Sources, questions
from everstep.apps.gpu_settings import GpuSettings
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.health import Fault
from everstep.core.node_check import EXIT_CODES, Finding, finding, in_all
from everstep.ports import KernelLog

DEADLINE = (
    20.0  # seconds: below every limit that Slurm's administrators set for a prolog, above what a busy driver takes
)
EXAMPLES = """\
examples:
  everstep check                                  all sources of this node; exit code 0 fit, 1 unfit, 3 unknown
  everstep check --json --source "kernel log"     one source, for a script
  kubectl -n everstep-system exec POD -- everstep check     in the agent's pod: with the agent's own settings
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. What stands in the environment is the agent's own configuration.

    Attributes:
        sources: names of the sources to ask; empty for all.
        window: seconds of the kernel log that count, back from now; None for the whole boot.
        deadline: seconds for the whole run.
    """

    node: SourceOptions = field(default_factory=SourceOptions)
    gpus: GpuSettings = field(default_factory=GpuSettings)
    site_faults: Path | None = None
    allow_injected: bool = False
    sources: tuple[str, ...] = ()
    window: float | None = None
    deadline: float = DEADLINE


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict in all, and on each source."""

    node: Finding
    sources: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.node.fitness]

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON object that ``--json`` prints."""
        return {
            "fitness": str(self.node.fitness),
            "reason": self.node.reason,
            "sources": [
                {
                    "source": item.source,
                    "fitness": str(item.fitness),
                    "reason": item.reason,
                    "faults": [_described(fault) for fault in item.faults],
                }
                for item in self.sources
            ],
        }


def from_environment(environment: Mapping[str, str] = os.environ) -> Request:
    """The request with the settings of the agent's pod, or of a lab's node; the defaults of a real node elsewhere."""
    site = environment.get("EVERSTEP_SITE_FAULTS")
    return Request(
        node=node_settings(environment),
        gpus=GpuSettings.from_environment(environment),
        site_faults=Path(site) if site else None,
        allow_injected=environment.get("EVERSTEP_ALLOW_INJECTED") == "true",
    )


def perform(request: Request) -> Report:
    """Asks every source once. Returns within the deadline, whatever hangs.

    Raises:
        InvalidInput: a source that this node does not have, a deadline that is none, or a wrong row of the site.
        Unreachable: a file that says what to ask is on a file server that does not answer.
    """
    if request.deadline <= 0:
        raise InvalidInput(f"a deadline of {request.deadline:g} s leaves no time to ask; give more than 0")
    began = time.monotonic()
    preparing = Asking(partial(_questions, request), "everstep check")
    if not preparing.done.wait(min(request.deadline, threading.TIMEOUT_MAX)):
        files = f", perhaps {request.site_faults}" if request.site_faults else ""
        raise Unreachable(f"what to ask was not found out within {request.deadline:g} s: reading a file hangs{files}")
    asked = preparing.answer()
    findings = tuple(finding(answer) for answer in ask(asked, request.deadline - (time.monotonic() - began)))
    return Report(in_all(findings), findings)


def _questions(request: Request) -> Mapping[str, Question]:
    catalog = catalog_with(request.site_faults)
    rules = Rules(catalog, request.allow_injected, request.deadline / 2, window=request.window)
    return questions(local_sources(request), rules, request.sources)


def local_sources(request: Request) -> Sources:
    """What this node has: the sources of the agent.

    Raises:
        InvalidInput: the settings name a source, or a way to read one, that there is not.
    """
    gpus, states = request.gpus.sources(at_once=True)
    return Sources(_Lines(request), gpus, (*states, *state_sources(request.node, at_once=True)))


class _Lines:
    """The kernel log, looked for only when it is read: a journal wants to know which boot this is."""

    name = KERNEL_LOG
    numbering = ""  # a check reads the whole boot and goes by no position

    def __init__(self, request: Request) -> None:
        self._request = request

    async def open(self) -> KernelLog:
        node = self._request.node
        boot_id = self._request.gpus.boot().boot_id() if node.kernel_log in ("", "journal") else ""
        return await line_source(node, boot_id).open()


def _described(fault: Fault) -> dict[str, Any]:
    return {
        "kind": fault.kind,
        "code": fault.code,
        "class": str(fault.fault_class),
        "severity": str(fault.severity),
        "action": str(fault.action),
        "reason": fault.reason,
        "pci": fault.pci,
        "gpu": fault.gpu_index,
        "serial": fault.gpu_serial,
        "count": fault.count,
        "since": fault.first_seen or None,
        "line": fault.line,
        "injected": fault.injected,
    }
