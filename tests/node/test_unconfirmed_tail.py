"""A start after a crash in the middle of a call: whatever the call does, the node comes up, and watches it this time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.wal.format.record import RecordKind
from tests.node.rig import ask, counters, open_node, send
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("copies_start")]


def crashed(tmp_path: Path, procedure: str, /, **params: Any) -> Path:
    """The directory of a node as a crash leaves it while the call is under way, with acknowledged calls before and one behind."""
    node = open_node(tmp_path / "before", partitions=2, call_timeout_s=600, site_restarts_max=1000)
    for _ in range(3):
        ask(node, "bump", id=1, amount=1)
    send(node, procedure, **params)
    partition = node.slots.partition_of(node.routes["bump"].procedure, [1, 0])
    logged = node.sequencer.watermarks()[partition]["durable"]
    wait_for(lambda: node.sequencer.watermarks()[partition]["durable"] > logged)
    send(node, "bump", key="k", id=1, amount=10)
    wait_for(lambda: node.sequencer.watermarks()[partition]["durable"] > logged + 1)
    shutil.copytree(node.directory, tmp_path / "data")
    sites: Any = node._sites
    sites._call_timeout_s, sites._remedies._restarts_max = 0.1, 1  # or the call would keep the node from draining
    node.close()
    return tmp_path / "data"


def skips(node: Node) -> list[dict[str, Any]]:
    """The skip records of the log."""
    return [record.json() for _, record in node._wal.read() if record.kind is RecordKind.SKIP]


@pytest.mark.parametrize("name", ["hang", "crash"])
def test_a_call_that_no_start_would_survive_is_skipped(tmp_path: Path, name: str) -> None:
    """Everything around it is there, the skip is in the log, and the next start does not meet the call again."""
    data = crashed(tmp_path, name, id=1)
    node = open_node(data, call_timeout_s=0.5)
    assert len(skips(node)) == 1
    assert counters(node) == {1: 13}
    assert ask(node, "bump", id=1, amount=1) == 14
    assert ask(node, "set_rate", name="r", value=1) == [0, 0]
    node.close()
    for file in (data / "state").glob("p*"):
        file.unlink()
    again = open_node(data, call_timeout_s=0.5)
    assert counters(again) == {1: 14}
    again.close()


def test_a_multi_partition_call_that_no_start_would_survive_is_skipped_everywhere(tmp_path: Path) -> None:
    """On one partition alone its copy of the replicated table would differ from now on."""
    data = crashed(tmp_path, "spin_everywhere", name="r")
    node = open_node(data, call_timeout_s=0.5)
    assert len(skips(node)) == 2
    assert {value for value, _ in ask(node, "look_everywhere", name="r")} == {0}
    assert counters(node) == {1: 13}
    node.close()


def test_what_was_left_over_is_complete_before_the_first_call(tmp_path: Path) -> None:
    """A slow call of the run before has ended when the node is there: queries and keys see it."""
    data = crashed(tmp_path, "nap", id=1, seconds=1.0)
    node = open_node(data, call_timeout_s=30)
    assert counters(node) == {1: 14}
    assert skips(node) == []
    assert ask(node, "bump", key="k", id=1, amount=10) == 14
    assert counters(node) == {1: 14}
    node.close()
