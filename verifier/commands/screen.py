"""What a command shows on a terminal and in a pipe: colors, how much is told, and a bar while it runs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from verifier.execution.process_tree import tree
from verifier.records.printable import block
from verifier.records.printable import line as printable
from verifier.subjects.compiling import any_compiles

if TYPE_CHECKING:
    from verifier.audit.news import News
    from verifier.audit.run_audit import Job
    from verifier.records.verdict import Line

Color = Literal["auto", "always", "never"]
LOOK_SECONDS = 0.5
"""Between two looks at whether a kernel is being compiled."""
FIRST_SECONDS = 30.0
"""After so long it is said, where no bar is, how far the audit is; then after twice as long, and so on."""
NARROW = 100
"""Characters of a terminal's line below which there is no room for a bar beside the words."""
PIPE_WIDTH = 200
"""Characters of a line where no terminal is: nothing is folded, whatever the width."""


@dataclass(frozen=True)
class Screen:
    """Where a report is printed; verbosity: see `terminal.show`, traceback: see `failure_text`."""

    verbosity: int = 0
    color: Color = "auto"
    traceback: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person sees the lines as they come."""
        return sys.stdout.isatty()

    @cached_property
    def console(self) -> Console:
        """Standard output, with the colors that are wanted."""
        width = None if self.is_terminal else PIPE_WIDTH
        if self.color == "never":
            return Console(width=width, color_system=None)
        return Console(width=width, force_terminal=True if self.color == "always" else None)

    def say(self, text: str, style: str = "") -> None:
        """Print lines in which nothing but the style steers the terminal, above the bar if there is one."""
        self.console.print(Text(block(text), style=style), soft_wrap=True)


class _Words(ProgressColumn):
    """What a function returns whenever the bar is drawn."""

    def __init__(self, words: Callable[[], str], column: Column) -> None:
        super().__init__(column)
        self._words = words

    def render(self, task: Task) -> Text:
        del task  # rich hands it to every column; the words are not of a task
        return Text(self._words())


class Bar:
    """A bar below what is said, on a terminal alone: what runs, how much is done, failures and time left.

    Elsewhere standard error is told the same now and then: a kernel that hangs is given up after minutes.
    """

    def __init__(self, screen: Screen, jobs: Sequence[Job], *, shown: bool | None = None) -> None:
        """Begin with nothing done; shown: whatever the screen is."""
        shown = screen.is_terminal if shown is None else shown
        self._progress = Progress(
            _Words(self._now, Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            *([BarColumn(bar_width=16)] if screen.console.width >= NARROW else []),
            TextColumn("{task.completed:.0f}/{task.total:.0f} checks, {task.fields[cases]} cases"),
            TextColumn("{task.fields[failures]} failed", style="red"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=screen.console,
            transient=True,
            expand=True,
            disable=not shown,
        )
        self._task = self._progress.add_task("", total=len(jobs), cases=0, failures=0)
        self._cases = self._failures = 0
        self._running: dict[tuple[str, str, str], int] = {}
        self._failing: set[tuple[str, str, str]] = set()
        self._compiles, self._looked = False, 0.0
        self._over = threading.Event()
        speaks = not shown and screen.verbosity >= 0
        self._teller = threading.Thread(target=self._tell, daemon=True) if speaks else None

    def hear(self, news: News) -> None:
        """Take what is told of a line that goes on."""
        line = (news.subject, news.check, news.dtype)
        if news.finding is not None:
            self._failing.add(line)
        elif not news.first_cases:
            self._running[line] = news.cases
        self._update()

    def add(self, line: Line) -> None:
        """Take the line of a check that has ended."""
        self._running.pop((line.subject, line.check, line.dtype), None)
        self._failing.discard((line.subject, line.check, line.dtype))
        self._cases += sum(n for verdict, n in line.counts.items() if verdict != "SKIPPED")
        self._failures += bool(line.findings)
        self._update(advance=1)

    def fail(self, job: Job) -> None:
        """Take a check in whose place the verifier itself failed."""
        self._failures += 1
        self._running.pop((job.subject, job.check, job.dtype), None)
        self._failing.discard((job.subject, job.check, job.dtype))
        self._update(advance=1)

    def _now(self) -> str:
        """Return what runs, of several lines that which began first, and whether a kernel is compiled."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._compiles = any_compiles(tree(os.getpid()))
        if not self._running:
            return "" if self._progress.tasks[0].completed else "starting"
        now = " ".join(next(iter([*self._running]), ()))
        return printable(f"compiling: {now}" if self._compiles else now)

    def refresh(self) -> None:
        """Draw it now, not a moment later."""
        self._progress.refresh()

    def _tell(self) -> None:
        """Say how far it is, each time after twice as long, until the bar is gone."""
        seconds = FIRST_SECONDS
        while not self._over.wait(seconds):
            task = self._progress.tasks[0]
            done = f"{task.completed:.0f}/{task.total:.0f} checks, {task.fields['cases']} cases"
            failures = f"{task.fields['failures']} failed"
            with suppress(OSError, ValueError):  # nobody reads it any more
                print(f"norm-verifier: {self._now()} ({done}, {failures})", file=sys.stderr, flush=True)
            seconds *= 2

    def _update(self, *, advance: int = 0) -> None:
        self._progress.update(
            self._task,
            advance=advance,
            cases=self._cases + sum(self._running.values()),
            failures=self._failures + len(self._failing),
        )

    def __enter__(self) -> Self:
        """Show the bar."""
        self._progress.start()
        if self._teller is not None:
            self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._over.set()
        if self._teller is not None:
            self._teller.join()
        self._progress.stop()
