"""What an agent says, as a stream of reports with the moment at which anybody could read them."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2
import msgspec

from beside.lines import PROBE_NUMBER
from everstep.adapters.kube.kubeconfig import read

_LOOK = 0.0005  # seconds between two looks at an agent's output while a report is awaited


@dataclass(frozen=True, slots=True)
class Report:
    """One thing said: the monotonic time at which it could be read, and its text."""

    at: float
    text: str


class Reports(Protocol):
    """The stream of what an agent says, from its start."""

    names_lines: bool  # whether each report quotes the line that it is of

    def skip(self) -> None:
        """Forgets what was said so far."""
        ...

    def look(self) -> None:
        """Takes in what was said meanwhile; called now and then during a storm."""
        ...

    def wait(self, marker: str, seconds: float) -> float | None:
        """When a report that holds ``marker`` (empty: any report) could be read; None when there is none in time."""
        ...

    def close(self) -> None: ...


class OutputReports:
    """Lines of the agent's own output that match a pattern.

    An agent says it there no later than anywhere else, so this is the view that is kindest to it. Of a storm's reports
    only those of probes are kept.
    """

    def __init__(self, path: Path, pattern: str) -> None:
        self.names_lines = False
        self._file = path.open("rb")
        self._pattern = re.compile(pattern.encode())
        self._partial = b""
        self._any: float | None = None  # when the first report was read, of whatever line
        self._probes: list[Report] = []

    def skip(self) -> None:
        self._file.seek(0, 2)
        self._partial, self._any = b"", None
        self._probes.clear()

    def look(self) -> None:
        while chunk := self._file.read(1 << 20):
            now = time.monotonic()
            whole, newline, self._partial = (self._partial + chunk).rpartition(b"\n")
            if not newline:
                continue
            if self._any is None and self._pattern.search(whole):
                self._any = now
            for mark in PROBE_NUMBER.finditer(whole):
                begin, end = whole.rfind(b"\n", 0, mark.start()) + 1, whole.find(b"\n", mark.end())
                line = whole[begin : end if end >= 0 else None]
                if self._pattern.search(line):
                    self._probes.append(Report(now, line.decode("utf-8", "replace")))

    def wait(self, marker: str, seconds: float) -> float | None:
        give_up = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self.look()
            if not marker and self._any is not None:
                return self._any
            for report in self._probes:
                if marker and marker in report.text:
                    return report.at
            if now > give_up:
                return None
            time.sleep(_LOOK)

    def close(self) -> None:
        self._file.close()


class _Fault(msgspec.Struct, rename="camel"):
    key: str
    line: str = ""
    count: int = 1


class _Status(msgspec.Struct, rename="camel"):
    verdict: str = ""
    faults: list[_Fault] = []


class _Health(msgspec.Struct):
    status: _Status | None = None


class _Event(msgspec.Struct):
    object: _Health


class NodeHealthReports:
    """Faults that are new or changed in a NodeHealth, as a watcher of the API server sees them."""

    def __init__(self, kubeconfig: Path, node: str) -> None:
        server, trust, auth = read(kubeconfig)
        self.names_lines = True
        self.verdict = ""
        self._said = deque[Report]()
        self._news = threading.Condition()
        self._known: dict[str, _Fault] = {}
        self._http = httpx2.Client(
            base_url=server, trust_env=False, verify=trust, auth=auth, timeout=httpx2.Timeout(10.0, read=None)
        )
        self._params = {"watch": "1", "fieldSelector": f"metadata.name={node}"}
        self._closed = False
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        decoder = msgspec.json.Decoder(_Event)
        path = "/apis/everstep.io/v1alpha1/nodehealths"
        while not self._closed:
            try:
                with self._http.stream("GET", path, params=self._params) as answer:
                    for line in answer.iter_lines():
                        self._take(decoder.decode(line), time.monotonic())
            except httpx2.HTTPError:
                if not self._closed:
                    raise

    def _take(self, event: _Event, now: float) -> None:
        status = event.object.status or _Status()
        with self._news:
            self.verdict = status.verdict
            for fault in status.faults:
                if self._known.get(fault.key) != fault:
                    self._said.append(Report(now, f"{fault.key} {fault.line}"))
            self._known = {fault.key: fault for fault in status.faults}
            self._news.notify_all()

    def look(self) -> None:
        """A thread of its own takes everything in."""

    def skip(self) -> None:
        with self._news:
            self._said.clear()

    def wait(self, marker: str, seconds: float) -> float | None:
        give_up = time.monotonic() + seconds
        with self._news:
            while True:
                for report in self._said:
                    if marker in report.text:
                        return report.at
                if not self._news.wait(give_up - time.monotonic()):
                    return None

    def wait_verdict(self, seconds: float) -> str:
        """The first verdict that the agent gives; raises SystemExit when it gives none in time."""
        give_up = time.monotonic() + seconds
        with self._news:
            while not self.verdict:
                if not self._news.wait(give_up - time.monotonic()):
                    raise SystemExit(f"the agent has written no NodeHealth within {seconds:.0f} s")
            return self.verdict

    def close(self) -> None:
        self._closed = True
        self._http.close()
