"""One sync for all blocks that were left without their own."""

from __future__ import annotations

import pytest

from cmdlog.wal.errors import Wedged
from cmdlog.wal.log import Log
from cmdlog.wal.writing.block_writes import ThreadFile
from tests.wal.logkit import NODE, ListSource, append, create, generations, numbers_in
from tests.wal.sim.simfiles import SimFiles


def async_log(files: SimFiles) -> tuple[Log, ListSource]:
    """A log without threads, none of whose blocks is synced before `run_background_work`."""
    create(files)
    log, source = Log.open(files, NODE, generation=generations(2000)), ListSource()
    log.start(source, threads=0, sync="async")
    return log, source


def test_one_sync_covers_every_block_that_was_left() -> None:
    """Three blocks are written; the flush makes all of them durable with one sync, and a second flush has nothing to do."""
    log, source = async_log(SimFiles())
    for number in range(3):
        append(log, source, [number])
    before = log.status()
    assert isinstance(before["syncs"], int)
    log._running._late.flush()
    after = log.status()
    assert after["syncs"] == before["syncs"] + 1
    assert after["durable_block"] == before["written_block"]
    log._running._late.flush()
    assert log.status()["syncs"] == after["syncs"]
    assert numbers_in(log) == [0, 1, 2]


def test_failed_sync_wedges_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left is not durable then, and nothing is written any more."""
    files = SimFiles()
    log, source = async_log(files)
    append(log, source, [1])
    ring = log._running

    def broken(own: ThreadFile, placed: object) -> object:
        raise OSError(5, "planted")

    monkeypatch.setattr(ThreadFile, "of_block", broken)
    ring._late.flush()
    assert "planted" in str(ring.error)
    assert len(source.errors) == 1
    with pytest.raises(Wedged):
        append(log, source, [2])
