"""What the demo shows while it runs, and its table at the end.

One rule: progress goes to standard error, so that the result can be piped.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cmdlog.cli.output import make_console, visible

if TYPE_CHECKING:
    from cmdlog.cli.demo.demo import DemoReport


class JudgedRun(Protocol):
    """What the report of every demo has."""

    notes: list[str]
    proofs: list[str]
    differences: list[str]
    data: str


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

    def report(self, title: str, report: JudgedRun, figures: Sequence[tuple[str, str]], picture: Sequence[str]) -> None:
        """Picture, figures and verdict, on standard output."""
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column("what")
        table.add_column("value", justify="right")
        for what, value in figures:
            table.add_row(what, value)
        console = make_console()
        for line in picture:
            console.print(line, soft_wrap=True)
        console.print(table)
        for note in report.notes:
            console.print(visible(note))
        for proof in report.proofs:
            console.print("proved", style="green", end="  ")
            console.print(visible(proof))
        for difference in report.differences:
            console.print("REFUTED", style="bold red", end=" ")
            console.print(visible(difference))
        if report.data:
            console.print(visible(f"data kept in {report.data}"))


def rows(report: DemoReport) -> list[tuple[str, str]]:
    """The table, top to bottom."""
    return [
        ("calls", f"{report.calls:,} by {report.clients} clients"),
        ("acknowledged before the kill", f"{report.acknowledged_before_kill:,}"),
        ("unanswered at the kill, sent again", f"{report.unanswered_at_kill:,}"),
        ("of those already in the log", f"{report.unanswered_but_logged:,}"),
        ("recovered by replay", _replayed(report)),
        ("cmdlog recover", f"{report.recover_s:.2f} s"),
        ("time to ready", f"{report.ready_s:.2f} s"),
        ("answered calls sent again", f"{report.repeated_after_recovery:,}"),
        ("rebuilt from the log alone", f"{report.rebuilt_calls:,} calls in {report.rebuild_s:.2f} s"),
        ("calls/s over HTTP", f"{report.calls_per_s:,.0f}"),
        ("whole run", f"{report.seconds:.1f} s (seed {report.seed})"),
    ]


def _replayed(report: DemoReport) -> str:
    """What `cmdlog recover` said that it replayed."""
    return f"{report.recover['replayed']:,} calls"
