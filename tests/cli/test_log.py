"""`cmdlog log`: what is asked for and cannot be there is a mistake, not an empty answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.directory.log import dump
from tests.node.rig import ask, open_node


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped node's."""
    node = open_node(tmp_path / "node", inline=True)
    ask(node, "bump", id=1, amount=1)
    node.close()
    return tmp_path / "node"


def test_dump_of_one_kind(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capitals do not count."""
    dump(directory, None, "Batch")
    assert capsys.readouterr().out.count('"kind":"batch"') == 1


def test_dump_of_a_kind_that_does_not_exist(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest one is named; nothing is printed."""
    with pytest.raises(CommandFailed, match="no records of kind batches") as failed:
        dump(directory, None, "batches")
    assert failed.value.hint == "did you mean batch?"
    assert capsys.readouterr().out == ""


def test_dump_without_a_match_says_so(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a partition that the node has not."""
    dump(directory, 77, "batch")
    said = capsys.readouterr()
    assert (said.out, "records is of kind batch and partition 77" in said.err) == ("", True)
