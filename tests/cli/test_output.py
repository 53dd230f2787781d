"""What commands print: tables that hold every name and number whole, wherever they go."""

from __future__ import annotations

import io
import sys

import pytest

from cmdlog.cli.output import Output

NAMES = [f"log-8316442f-n1-{first:016d}-{first + 13:016d}.seg" for first in (85, 99)]
TXN = 3565158400482344961
COLUMNS = ("name", "blocks", "from", "to", "bytes", "state")
ROWS = [[name, "85 - 98", "2026-01-31T12:00:00.000Z", TXN, 61440, "whole [x]"] for name in NAMES]


class Terminal(io.StringIO):
    """A terminal, as far as a program asks."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> list[str]:
    """Lines of the table without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", stream)
    Output().table("Archive", COLUMNS, ROWS)
    return stream.getvalue().splitlines()


def test_piped_table_has_each_row_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, times and transaction ids stand whole on one line, so that `grep` and `awk` find them."""
    lines = shown(monkeypatch, io.StringIO())
    for name in NAMES:
        (line,) = (line for line in lines if name in line)
        assert str(TXN) in line
        assert "2026-01-31T12:00:00.000Z" in line
        assert "whole [x]" in line, "what looks like markup is shown as it is"


def test_narrow_terminal_folds_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 80 columns a name may take several lines; put together again it is whole."""
    lines = shown(monkeypatch, Terminal())
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in "".join(lines)
    cells = [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in lines if line.startswith("\u2502")]
    columns = ["".join(column) for column in zip(*cells, strict=True)]
    assert "".join(NAMES) in columns[0]
    assert columns[3].count(str(TXN)) == 2
