"""Progress of a long command on a terminal: bars with rate and time left. Elsewhere, and with `--json`, there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cmdlog.cli.output import make_console, out

if TYPE_CHECKING:
    from rich.progress import Progress

    from replay.recover.execute import RecoveryProgress
    from replay.results import WorkPace

ROWS: Final = -1  # number of the bar that shows rows
Tell = Callable[["RecoveryProgress"], None]


def make_bar(text: str) -> Progress | None:
    """Bars on standard error that are gone at the end, each with a name and this text; None where nobody looks at them."""
    if out.json or not sys.stderr.isatty():
        return None
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TextColumn(text))
    return Progress(*columns, console=make_console(stderr=True), transient=True)


class ProgressDisplay:
    """Progress bars with rate and time left on a terminal, one for all and one for each partition; nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None
        self._tasks: dict[int | None, Any] = {}

    def __enter__(self) -> Tell:
        self._bar = make_bar("{task.fields[pace]}")
        if self._bar is None:
            return lambda _progress: None
        self._bar.start()
        self._tasks[None] = self._bar.add_task(self._name, total=None, pace="")
        return self._show_progress

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def moved(self, moved: WorkPace) -> None:
        """Rows on their way to other partitions."""
        if self._bar is None:
            return
        if ROWS not in self._tasks:
            self._tasks[ROWS] = self._bar.add_task("move rows", total=None, pace="")
        left = f"{moved.left_s:.0f} s left" if moved.left_s is not None else ""
        pace = f"{moved.done:,} rows, {moved.rate:,.0f}/s {left}"
        self._bar.update(self._tasks[ROWS], completed=moved.done, total=moved.total, pace=pace)

    def _show_progress(self, progress: RecoveryProgress) -> None:
        self._show(None, progress)
        for partition, pace in progress.partitions.items() if len(progress.partitions) > 1 else ():
            if partition not in self._tasks:
                self._tasks[partition] = self._bar.add_task(f"  partition {partition}", total=None, pace="")
            self._show(partition, pace)

    def _show(self, partition: int | None, pace: WorkPace) -> None:
        left = f"{pace.left_s:.0f} s left" if pace.left_s is not None else ""
        text = f"{pace.done:,} calls, {pace.rate:,.0f}/s {left}"
        self._bar.update(self._tasks[partition], completed=pace.done, total=pace.total, pace=text)
