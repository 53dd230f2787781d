"""Deltas in the snapshot thread: what it asks for, and which part of the log they leave needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cmdlog.node.background import idle_process
from procedures.storage.changed_keys import Changes
from snapshot import retention
from snapshot.capture.delta import DeltaCapture
from snapshot.catalog import list_snapshots
from tests.node.snapshots.thread import FILES, US, Node


@pytest.fixture(autouse=True)
def small_states_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small state is snapshotted as if it were a large one; on a busy machine nothing waits long for time nobody else wants."""
    monkeypatch.setattr(idle_process, "ASKED_S", 0.0)
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 100.0)


def write_delta(node: Node, partition: int, ident: int) -> None:
    """A site that writes an empty delta, and applies two batches before it is complete."""
    wish = node.wishes[-1]
    assert wish.base is not None
    changes = Changes()
    changes.cut(node.states[partition].position, keep=())
    capture = DeltaCapture(node.states[partition], changes, [], wish.path)
    node.apply(partition)
    node.apply(partition)
    while not capture.step():
        pass
    node.snapshotter.captured(ident, capture.report())


@pytest.mark.slow
def test_wishes_name_the_lineage_whose_turn_it_is(tmp_path: Path) -> None:
    """No base for the first two; then the older one of the two newest, whose cuts are both to be kept."""
    node = Node(tmp_path)
    for _ in range(3):
        node.apply()
        node.take()
    node.close()
    bases = [wish.base.index if wish.base is not None else None for wish in node.wishes]
    assert bases == [None, None, 1]
    assert [wish.keep for wish in node.wishes] == [(), (1,), (1, 2)]
    assert {os.path.basename(wish.path) for wish in node.wishes} == {"delta.sqlite"}


@pytest.mark.slow
def test_delta_needs_the_log_from_where_it_began(tmp_path: Path) -> None:
    """Entries behind its cut lie in blocks that are older than its end: neither manifest nor anchor may skip them."""
    node = Node(tmp_path)
    for _ in range(2):
        node.apply()
        node.take()
    node.apply()
    began = node.block
    node.capturing = lambda partition, ident, _path: write_delta(node, partition, ident)
    made = node.take()
    assert (made["kind"], made["base"], made["index"]) == ("delta", "p0000-0000000000000001", 3)
    assert made["log_block"] == began < node.block
    node.capturing = node.capture_all
    node.take()
    node.close()
    assert [event[2] for event in node.events if event[0] == "anchor"][-1] == began
    manifests = [s.manifest for s in list_snapshots(FILES, str(tmp_path), US)]
    assert [m.kind for m in manifests if m is not None][-2:] == ["delta", "full"]
