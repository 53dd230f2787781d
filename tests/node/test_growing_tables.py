"""New code with more columns: added at its start, at one place of the log, through which every replay goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from procedures import Database
from tests.node.apps import growing
from tests.node.rig import ask, open_node

pytestmark = pytest.mark.slow
ROWS = 12


def rows(node: Node) -> list[Any]:
    """Of all partitions, as the code that runs declares the table."""
    return sorted((row for of in ask(node, "show") for row in of), key=lambda row: int(row[0]))


def opened(data: Path, app: Database, **more: Any) -> Node:
    """On two partitions, in this process."""
    return open_node(data, app=app, inline=True, partitions=2, **more)


def filled(data: Path) -> Node:
    """A node of the first code with rows in both partitions."""
    node = opened(data, growing.first)
    for number in range(ROWS):
        ask(node, "put", id=number, tag=5)
    return node


def test_columns_are_there_from_the_first_call_on(tmp_path: Path) -> None:
    """Rows that are there get the default; later code drops the index; the former code runs without the new columns."""
    node = filled(tmp_path)
    before = rows(node)
    node.close()
    node = opened(tmp_path, growing.second)
    assert rows(node) == [[key, "None", "1.50", tag] for key, tag in before]
    assert ask(node, "cheer", id=3, mood="well") == 1
    ask(node, "put", id=ROWS, tag=6)
    after = rows(node)
    assert after[3] == ["3", "well", "2.50", "5"]
    node.close()
    node = opened(tmp_path, growing.first)
    assert rows(node) == [[key, tag] for key, _, _, tag in after]
    ask(node, "put", id=ROWS + 1, tag=7)
    node.close()
    node = opened(tmp_path, growing.third)
    assert rows(node) == [*after, [str(ROWS + 1), "None", "1.50", "7"]]
    node.close()
