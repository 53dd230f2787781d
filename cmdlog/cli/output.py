"""What commands print: for people by default, one JSON value per line with `--json`.

One rule: results go to standard output, everything about the run to standard error; so a pipe holds results alone.

Text of callers, servers, logs and files may hold what a terminal obeys: ESC, control characters, marks that turn the direction of
text, ends of lines that forge lines of ours. It is printed by `Output` and by `make_console` alone, which show such characters as
Python's `repr` does (`visible`).
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cmdlog.cli.cli_errors import ShownFailure, Stop

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ROWS_SHOWN: Final = 5  # of a stopped call; --json shows those of the place
STOP_COLUMNS: Final = ("partition", "index", "transaction", "call", "table", "key", "replayed", "live")
FOLLOWING: Final = "     | "  # before the second line of an error
JSON_OPTIONS: Final = orjson.OPT_NON_STR_KEYS
PIPED_WIDTH: Final = 100_000  # characters of a line that no terminal shows: longer than any table


def visible(text: str) -> str:
    """Foreign text as a terminal may show it: one line, in which what could do something is written as its escape sequence."""
    return text if text.isprintable() else "".join(map(_shown_character, text))


def visible_lines(text: str, indent: str = "") -> str:
    """The same of text that has lines; `indent` is before all but the first, which no forged line can be without."""
    return text if text.isprintable() else f"\n{indent}".join(map(visible, text.split("\n")))


def visible_values(value: Any) -> Any:
    """The same for every text in a JSON value, including member names."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(name)): visible_values(inner) for name, inner in value.items()}
    return [visible_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def visible_json(data: bytes) -> str:
    """JSON in which what could do something in a terminal is written as JSON escapes it: the same value."""
    text = data.decode()
    if data.isascii() and b"\x7f" not in data:
        return text
    return "".join(one if one == "\n" or _is_shown(one) else _json_escape(one) for one in text)


def _is_shown(one: str) -> bool:
    return one.isprintable() or unicodedata.category(one) == "Zs"  # spaces of other languages


def _shown_character(one: str) -> str:
    return one if _is_shown(one) else one.encode("unicode_escape").decode()


def _json_escape(one: str) -> str:
    units = one.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def make_console(*, stderr: bool = False, **options: Any) -> Console:
    """Where rich draws: nothing in a text is markup, and `visible` holds for all that is drawn."""
    return _console_class()(stderr=stderr, markup=False, emoji=False, highlight=False, **options)


@functools.cache
def _console_class() -> type[Console]:
    from rich.console import Console
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                shown = segment.control or segment.text == "\n" or segment.text.isprintable()
                yield segment if shown else Segment(visible_lines(segment.text), segment.style)

    return VisibleConsole


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
        sys.stdout.write(visible_json(orjson.dumps(value, option=JSON_OPTIONS | orjson.OPT_APPEND_NEWLINE, default=str)))
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """A line for people."""
        self.document(visible(text))

    def document(self, text: str) -> None:
        """Lines for people, each ours to the end."""
        sys.stdout.write(visible_lines(text) + "\n")
        sys.stdout.flush()

    def indented_json(self, value: Any) -> None:
        """A value for people, over several lines."""
        self.document(visible_json(orjson.dumps(value, option=JSON_OPTIONS | orjson.OPT_INDENT_2, default=str)))

    def print_note(self, text: str) -> None:
        """Something about the run that is no result: a line on standard error, with `--json` an object."""
        line = visible_json(orjson.dumps({"note": text})) if self.json else f"note: {visible(text)}"
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, stderr: bool = False) -> None:
        """A table for people. Nothing is cut: a narrow terminal folds, and what is piped has lines of any length."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(visible(title), style="table.title"), title_justify="left")
        for column in columns:
            table.add_column(visible(column), overflow="fold")
        for row in rows:
            table.add_row(*(Text(visible(str(value))) for value in row))
        self.renderable(table, stderr=stderr)

    def renderable(self, shown: RenderableType, *, stderr: bool = False) -> None:
        """What rich can draw, for people; cut nowhere."""
        stream = sys.stderr if stderr else sys.stdout
        make_console(stderr=stderr, width=None if stream.isatty() else PIPED_WIDTH, soft_wrap=False).print(shown)

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
        console = make_console(stderr=True, soft_wrap=True)
        console.print("error:", style="bold red", end=" ")
        console.print(visible_lines(failure.message, FOLLOWING))
        if failure.hint:
            console.print("hint: ", style="bold", end=" ")
            console.print(visible_lines(failure.hint, FOLLOWING))
        for detail in failure.details if len(failure.details) > 1 else ():
            console.print(f"  - {visible_lines(detail, FOLLOWING)}")
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
