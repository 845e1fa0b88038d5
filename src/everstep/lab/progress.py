"""How far several slow things are, side by side: live bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from everstep.lab.terminal import console

_QUIET_SECONDS = 20.0  # in a log, one thing is heard of at most this often


class Progresses:
    """One line for each thing that is being made; safe to tell from several threads.

    Appears only once something is told, so that a run that finds everything made prints nothing.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = console(stderr=True)
        self._lock = threading.Lock()
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.fields[what]:<14}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}
        self._started = 0.0

    def tell(self, what: str, line: str) -> None:
        """Says how far `what` is; a line that starts with "built" is its last one."""
        done = line.startswith("built")
        with self._lock:
            if not self._tasks:
                self._console.print(self._title)
                self._started = time.monotonic()
                if self._console.is_terminal:
                    self._bars.start()
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(line, total=1, what=what)
            self._bars.update(self._tasks[what], description=line, completed=1 if done else 0)
            now = time.monotonic()
            if not self._console.is_terminal and (done or now - self._told.get(what, 0) > _QUIET_SECONDS):
                self._told[what] = now
                minutes, seconds = divmod(int(now - self._started), 60)
                self._console.print(f"{minutes:3}:{seconds:02}  {what:<14} {line}")

    def __enter__(self) -> Progresses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks and self._console.is_terminal:
            self._bars.stop()
