"""What commands print: for people by default, one JSON value per line with `--json`.

One rule: results go to standard output, everything about the run to standard error; so a pipe holds results alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cmdlog.cli.cli_errors import ShownFailure, Stop

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS_SHOWN: Final = 5  # of a stopped call; --json shows those of the place
STOP_COLUMNS: Final = ("partition", "index", "transaction", "call", "table", "key", "replayed", "live")
PIPED_WIDTH: Final = 100_000  # characters of a line that no terminal shows: longer than any table


class Output:
    """Prints results and failures. `json` is set once, while the command line is read."""

    def __init__(self) -> None:
        self.json = False

    def result(self, value: Any, show: Callable[[], None]) -> None:
        """The result as JSON, or as `show` shows it to people."""
        if self.json:
            self.line(value)
        else:
            show()

    def line(self, value: Any) -> None:
        """One JSON value on a line of its own, at once: who reads a pipe waits for it."""
        sys.stdout.write(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE, default=str).decode())
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """A line for people."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def print_note(self, text: str) -> None:
        """Something about the run that is no result: a line on standard error, with `--json` an object."""
        line = orjson.dumps({"note": text}).decode() if self.json else f"note: {text}"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, stderr: bool = False) -> None:
        """A table for people. Nothing is cut: a narrow terminal folds, and what is piped has lines of any length."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(title, style="table.title"), title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(str(value)) for value in row))
        self.renderable(table, stderr=stderr)

    def renderable(self, shown: RenderableType, *, stderr: bool = False) -> None:
        """What rich can draw, for people; cut nowhere."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        Console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH, soft_wrap=False).print(shown)

    def failure(self, failure: ShownFailure) -> None:
        """An error: what happened, and what to do."""
        if self.json:
            error: dict[str, Any] = {
                "kind": failure.kind, "message": failure.message, "hint": failure.hint, "exit_code": failure.exit_code
            }  # fmt: skip
            if failure.details:
                error["details"] = list(failure.details)
            if failure.stops:
                error["stops"] = [stop.place for stop in failure.stops]
            if failure.place is not None:
                error["place"] = failure.place
            self.line({"error": error})
            return
        from rich.console import Console

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print("error:", style="bold red", end=" ")
        console.print(failure.message, markup=False)
        if failure.hint:
            console.print("hint: ", style="bold", end=" ")
            console.print(failure.hint, markup=False)
        for detail in failure.details if len(failure.details) > 1 else ():
            console.print(f"  - {detail}", markup=False)
        if failure.stops:
            self._show_stops(failure.stops)

    def _show_stops(self, stops: Sequence[Stop]) -> None:
        """A row for each difference, a table for all partitions."""
        rows = []
        for stop in stops:
            place = stop.place
            call = f"{place['procedure']} ({place['position']})" if place["position"] >= 0 else f"one of {place['procedure']}"
            where = (place["partition"], place["index"], place["txn_id"], call)
            rows += [(*where, *row.cells) for row in stop.rows[:ROWS_SHOWN]] or [
                (*where, "", "", place["got"], place["expected"])
            ]
            if (left := len(stop.rows) + place["rows_left_out"] - ROWS_SHOWN) > 0:
                rows.append((*where, "", f"and {left} more rows", "--json names more" if len(stop.rows) > ROWS_SHOWN else "", ""))
        self.table("Stopped calls", STOP_COLUMNS, rows, stderr=True)


out = Output()


def _use_json(wanted: bool) -> bool:
    out.json = out.json or wanted
    return wanted


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.", callback=_use_json)]
"""Parameter type of the option that every command has."""


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested objects as rows of dotted name and value."""
    rows: list[tuple[str, object]] = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            rows += flatten(inner, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", inner))
    return rows
