"""Nodes whose log is full, and starts that end as a killed process does.

One rule: a log is filled by calls until one is refused with `log_full`; what keeps it full is undone by the test that made it so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.log import Log
from cmdlog.wal.writing.hard_state_writer import HardStateWriter
from cmdlog.wal.writing.ring import Ring
from procedures import Database
from replay.state.trust import Trust
from tests.node.apps.newer import db as newer_db
from tests.node.rig import ask, open_node
from tests.waiting import wait_for
from tests.wal.logkit import ListSource

SMALL_RING: dict[str, Any] = {
    "partitions": 2, "segment_bytes": 64 << 10, "segments": 6, "log_reserve_bytes": 16 << 10, "call_bytes_max": 4000,
}  # fmt: skip


def store(node: Node, seq: int, size: int = 2000) -> bool:
    """One call; False when the log is full."""
    try:
        return ask(node, "store", id=seq, seq=seq, data=bytes(size)) == size
    except LogFullRefusal:
        return False


def fill(node: Node) -> int:
    """Calls until the log refuses one; how many it took."""
    for seq in range(100_000):
        if not store(node, seq):
            return seq
    raise AssertionError("the log grows")


def takes_calls(node: Node, first: int = 1_000_000) -> Callable[[], bool]:
    """Whether a call is taken now; each look is another call."""
    numbers = iter(range(first, first + 1_000_000))
    return lambda: store(node, next(numbers))


def refusals() -> Callable[[Node], str]:
    """Why a call is refused with `log_full`, "" when it is taken; each look is another call."""
    numbers = iter(range(2_000_000, 3_000_000))

    def why(node: Node) -> str:
        seq = next(numbers)
        try:
            ask(node, "store", id=seq, seq=seq, data=bytes(2000))
        except LogFullRefusal as full:
            return str(full)
        return ""

    return why


@contextlib.contextmanager
def without_snapshots() -> Iterator[None]:
    """No snapshot is ever finished, as when every run is killed before."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Snapshotter, "start", lambda self: None)
        yield


def kill(node: Node) -> None:
    """Ends the node's threads and gives its lock up; nothing is written, as after SIGKILL."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ring, "drain", lambda self: None)
        patched.setattr(HardStateWriter, "note_durable", lambda self, block: None)
        patched.setattr(Trust, "seal", lambda self, partitions, hurried: None)
        node.close(drain_s=0)


def restart(directory: Path, **settings: Any) -> Node:
    """A start of the node that is there."""
    return open_node(directory, inline=True, **settings)


def gets_out(node: Node) -> None:
    """Waits until calls are taken again, and are executed once."""
    wait_for(takes_calls(node))


def stored(node: Node) -> int:
    """Calls of `store` in the states."""
    return sum(int(row[0]) for row in node.query("SELECT count(*) FROM payloads").rows)


def log_bytes(node: Node) -> int:
    """Of the ring, in use."""
    return int(node.status()["log"]["bytes_used"])


def eat_reserve(directory: Path) -> None:
    """Control records until no block fits any more: what starts of earlier versions did."""
    log, source = Log.open(RealFiles(), str(directory)), ListSource()
    log.start(source, threads=0)
    while log.room_bytes or log.reserve_left_bytes >= SECTOR_BYTES:
        source.put(len(source.sent))
        assert log.run_turn()
    log.close()
    assert not source.errors


def newer_program() -> Database:
    """The application with a table and two procedures more."""
    return newer_db
