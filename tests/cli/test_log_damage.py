"""A damaged log is one byte away from a whole one, and is read as damage, not as the end that a crash tore."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.cluster.log_damage import flip_byte
from cmdlog.wal.errors import Corrupt
from tests.node.rig import ask, open_node


def test_flipped_byte_is_read_as_damage(tmp_path: Path) -> None:
    """One byte of the log is another one, and the node that reads it says so."""
    node = open_node(tmp_path, inline=True)
    for number in range(100):
        ask(node, "bump", id=number, amount=1)
    node.close()
    before = {path: path.read_bytes() for path in (tmp_path / "log").glob("seg-*")}
    damaged = flip_byte(tmp_path)
    after = {path: path.read_bytes() for path in before}
    assert [path for path in before if before[path] != after[path]] == [damaged]
    assert sum(a != b for a, b in zip(before[damaged], after[damaged], strict=True)) == 1
    with pytest.raises(Corrupt):
        open_node(tmp_path, inline=True)


def test_directory_without_a_log_has_nothing_to_damage(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(CommandFailed, match="holds no log that could be damaged"):
        flip_byte(tmp_path)
