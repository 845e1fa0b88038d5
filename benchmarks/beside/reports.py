"""What an agent says, as a stream of reports with the moment at which anybody could read them."""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
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


class _WatchReports(ABC):
    """What a watcher of the API server sees at one path; a thread of its own takes it in."""

    names_lines = True

    def __init__(self, kubeconfig: Path, path: str, selector: str) -> None:
        server, trust, auth = read(kubeconfig)
        self._said = deque[Report](maxlen=10_000)
        self.news = threading.Condition()
        self._http = httpx2.Client(
            base_url=server, trust_env=False, verify=trust, auth=auth, timeout=httpx2.Timeout(10.0, read=None)
        )
        self._path, self._params = path, {"watch": "1", "fieldSelector": selector}
        self._closed = False
        threading.Thread(target=self._follow, daemon=True).start()

    @abstractmethod
    def texts(self, line: str) -> Iterator[str]:
        """What one line of the watch says anew."""

    def _follow(self) -> None:
        while not self._closed:
            try:
                with self._http.stream("GET", self._path, params=self._params) as answer:
                    for line in answer.iter_lines():
                        now = time.monotonic()
                        with self.news:
                            self._said.extend(Report(now, text) for text in self.texts(line))
                            self.news.notify_all()
            except httpx2.HTTPError:
                if not self._closed:
                    raise

    def look(self) -> None:  # noqa: B027 - there is nothing to do: the thread looks
        """Nothing to do: the thread does."""

    def skip(self) -> None:
        with self.news:
            self._said.clear()

    def wait(self, marker: str, seconds: float) -> float | None:
        give_up = time.monotonic() + seconds
        with self.news:
            while True:
                for report in self._said:
                    if marker in report.text:
                        return report.at
                if not self.news.wait(give_up - time.monotonic()):
                    return None

    def close(self) -> None:
        self._closed = True
        self._http.close()


class _Fault(msgspec.Struct, rename="camel"):
    key: str
    line: str = ""
    count: int = 1


class _Status(msgspec.Struct, rename="camel"):
    verdict: str = ""
    faults: list[_Fault] = []


class _Health(msgspec.Struct):
    status: _Status | None = None


class _HealthChange(msgspec.Struct):
    object: _Health


class NodeHealthReports(_WatchReports):
    """Faults that are new or changed in a NodeHealth."""

    def __init__(self, kubeconfig: Path, node: str) -> None:
        self.verdict = ""
        self._known: dict[str, _Fault] = {}
        self._decoder = msgspec.json.Decoder(_HealthChange)
        super().__init__(kubeconfig, "/apis/everstep.io/v1alpha1/nodehealths", f"metadata.name={node}")

    def texts(self, line: str) -> Iterator[str]:
        status = self._decoder.decode(line).object.status or _Status()
        self.verdict = status.verdict
        for fault in status.faults:
            if self._known.get(fault.key) != fault:
                yield f"{fault.key} {fault.line}"
        self._known = {fault.key: fault for fault in status.faults}

    def wait_verdict(self, seconds: float) -> str:
        """The first verdict that the agent gives; raises SystemExit when it gives none in time."""
        give_up = time.monotonic() + seconds
        with self.news:
            while not self.verdict:
                if not self.news.wait(give_up - time.monotonic()):
                    raise SystemExit(f"the agent has written no NodeHealth within {seconds:.0f} s")
            return self.verdict


class _Said(msgspec.Struct):
    message: str = ""


class _EventChange(msgspec.Struct):
    object: _Said


class EventReports(_WatchReports):
    """Kubernetes Events on a node; those that were there before are forgotten."""

    def __init__(self, kubeconfig: Path, node: str) -> None:
        self._decoder = msgspec.json.Decoder(_EventChange)
        super().__init__(kubeconfig, "/api/v1/events", f"involvedObject.name={node}")

    def texts(self, line: str) -> Iterator[str]:
        yield self._decoder.decode(line).object.message
