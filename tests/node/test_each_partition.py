"""`partition_by=EACH`: a call that runs once on each partition, on rows of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cmdlog
from cmdlog.errors import Aborted, ProcedureFailed
from cmdlog.node.embedded.embedded import Embedded, open_embedded
from tests.node.apps.shelves import db
from tests.node.rig import SMALL
from tests.waiting import PATIENCE_S

ITEMS = range(24)


def shelves(directory: Path, **settings: int) -> Embedded:
    """A database with goods of which a half has expired."""
    opened = open_embedded(directory / "data", db, **{**SMALL, "partitions": 3, **settings})
    for item in ITEMS:
        opened.call("put", item=item, due=item % 2)
    opened.call("set_limit", due=1)
    return opened


def test_call_works_on_rows_of_each_partition(tmp_path: Path) -> None:
    """Its result is a list in partition order; each partition knows its number and draws numbers of its own."""
    with shelves(tmp_path) as opened:
        before = opened.call("count")
        found = opened.call("expire")
        assert [partition for partition, _, _ in found] == [0, 1, 2]
        assert sum(removed for _, removed, _ in found) == len(ITEMS) // 2
        assert len({drawn for _, _, drawn in found}) == 3
        after = opened.call("count")
        assert [b - a for b, a in zip(before, after, strict=True)] == [removed for _, removed, _ in found]
        assert opened.call("copy") == after


def test_each_partition_decides_for_itself(tmp_path: Path) -> None:
    """An abort on one undoes the changes of that one; the answer names it. A retry under the key gets the same answer."""
    with shelves(tmp_path) as opened:
        before = opened.call("count")
        for _ in range(2):
            with pytest.raises(Aborted, match=r"not here \(on partition 1 of 3; the others kept their changes\)") as aborted:
                opened.call("empty", idempotency_key="once", but=[1])
            assert aborted.value.abort_code == "kept"
        assert opened.call("count") == [0, before[1], 0]
        with pytest.raises(Aborted, match=r"not here$"):
            opened.call("empty", but=[0, 1, 2])


def test_replicated_tables_and_rows_of_others_are_refused(tmp_path: Path) -> None:
    """Copies of replicated rows stay equal, and a row is written where it belongs."""
    with shelves(tmp_path) as opened:
        with pytest.raises(ProcedureFailed, match="limits is replicated"):
            opened.call("set_limit_on_each", due=2)
        with pytest.raises(ProcedureFailed, match=r"belongs to partition . and|on partitions ., . of 3"):
            opened.call("put_on_each", item=100)
        assert sum(opened.call("count")) == len(ITEMS) + 1


def test_call_replays_as_it_ran(tmp_path: Path) -> None:
    """A recovery of the log alone gives the same states, digests and results."""
    with shelves(tmp_path) as opened:
        opened.call("expire")
        opened.call("copy")
        with pytest.raises(Aborted):
            opened.call("empty", but=[2])
        left = opened.call("count")
    command = [sys.executable, "-m", "cmdlog", "recover", str(tmp_path / "data"), "--to", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    with open_embedded(tmp_path / "out", db, **{**SMALL, "partitions": 3}) as again:
        assert again.call("count") == left


def test_what_only_reads_needs_no_each() -> None:
    """`partition_by=None, read_only=True` reads each partition's own rows already."""
    assert repr(cmdlog.EACH) == "EACH"
    with pytest.raises(cmdlog.DefinitionError, match="partition_by=None, read_only=True"):

        @cmdlog.Database("reads").procedure(partition_by=cmdlog.EACH, read_only=True)
        def look(tx: cmdlog.Transaction) -> None: ...
