"""What the demo shows while it runs, and its table at the end.

One rule: progress goes to standard error, so that the result can be piped.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cmdlog.cli.demo.demo_report import DemoReport, figures
from cmdlog.cli.output import make_console, visible


class DemoDisplay:
    """One line of progress, and above it what has happened. Silent when `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = make_console(stderr=True, quiet=quiet)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._progress.stop()

    def stage(self, name: str, *, total: int | None = None) -> None:
        """What is being done now; without `total` its progress is unknown."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=total)

    def advance(self, done: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done)

    def print_line(self, text: str) -> None:
        """A sentence that stays."""
        self._progress.console.print(visible(text))

    def report(self, title: str, report: DemoReport) -> None:
        """Figures and verdict, on standard output."""
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column("what")
        table.add_column("value", justify="right")
        for what, value in figures(report):
            table.add_row(what, value)
        console = make_console()
        console.print(table)
        for proof in report.proofs:
            console.print("proved", style="green", end="  ")
            console.print(visible(proof))
        for difference in report.differences:
            console.print("REFUTED", style="bold red", end=" ")
            console.print(visible(difference))
        if report.data:
            console.print(visible(f"data kept in {report.data}"))
