"""What a run of a demo has measured and proved, and what is shown of it: progress while it runs, a table at the end.

One rule: it shows what clients have seen from outside; nodes are asked for nothing here. Progress goes to standard error, so that
the result can be piped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cmdlog.cli.output import make_console, visible


@dataclass(slots=True)
class FaultReport:
    """One fault, as the clients have seen it."""

    stage: str
    what: str  # happened
    node: int  # that it happened to
    without_service_s: float = 0.0  # the longest time in which no client got an answer
    leader: int = 0  # when calls are answered again
    term: int = 0  # of the leader; 0 of a node alone
    answered: int = 0  # calls, from the fault to the end of the stage
    unknown: int = 0  # attempts whose outcome was unknown; each was repeated under its key
    refused: int = 0  # attempts that no node accepted; each was repeated
    deposes: bool = False  # the node led before, and was not to lead while it lasted

    def describe(self) -> str:
        """In a sentence."""
        led = f", then node {self.leader} leads in term {self.term}" if self.term else ""
        repeated = f", {self.unknown} attempts of unknown outcome and {self.refused} refused ones repeated"
        return (
            f"{self.stage}: {self.what}; {self.without_service_s:.2f} s without service{led}; "
            f"{self.answered:,} calls answered{repeated if self.unknown + self.refused else ''}"
        )


@dataclass(slots=True)
class DemoReport:
    """The figures of one run, in the order in which they arise."""

    nodes: int
    seed: int
    partitions: int
    clients: int
    calls: int = 0  # with those that load the tables
    ready_s: float = 0.0  # from the start of the processes to serving calls
    calls_per_s: float = 0.0  # before any fault
    faults: list[FaultReport] = field(default_factory=list)
    answered_by: dict[str, int] = field(default_factory=dict)  # node -> calls of the load
    repeated: int = 0  # answered calls that were sent again, to see the same answer
    recovered_calls: int = 0  # replayed by `cmdlog recover` of the nodes' directories
    recover_s: float = 0.0
    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    data: str = ""


def figures(report: DemoReport) -> list[tuple[str, str]]:
    """The table, top to bottom."""
    by_nodes = ("answered by nodes " + ", ".join(report.answered_by), " / ".join(f"{n:,}" for n in report.answered_by.values()))
    return [
        ("calls", f"{report.calls:,} by {report.clients} clients"),
        *((by_nodes,) if report.nodes > 1 else ()),
        ("time to ready", f"{report.ready_s:.2f} s"),
        ("calls/s over HTTP before any fault", f"{report.calls_per_s:,.0f}"),
        *((f"without service: {fault.stage}", f"{fault.without_service_s:.2f} s") for fault in report.faults),
        ("unknown outcomes, repeated", f"{sum(fault.unknown for fault in report.faults):,}"),
        ("answered calls sent again", f"{report.repeated:,}"),
        ("cmdlog recover at the end, from snapshots and log", f"{report.recovered_calls:,} calls in {report.recover_s:.2f} s"),
        ("whole run", f"{report.seconds:.1f} s (seed {report.seed})"),
    ]


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
