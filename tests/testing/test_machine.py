"""The clock that a test sets and advances."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cmdlog
from cmdlog.testing import OpenEmbedded, SettableClock, assert_replays
from cmdlog.testing.machine import BreakableFiles, SharedWord, UnsyncedFiles
from cmdlog.wal.errors import WriteFailed
from tests.testing.apps import lease

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


def test_clock_runs_until_it_is_set() -> None:
    """Real time goes on, also after an advance; a moment that was set stays until the clock is advanced."""
    clock = SettableClock()
    before = datetime.now(UTC)
    clock.advance(days=1)
    assert before <= clock.now() - timedelta(days=1) <= datetime.now(UTC)
    clock.set(NEW_YEAR)
    assert (clock.now(), clock.now()) == (NEW_YEAR, NEW_YEAR)
    clock.advance(timedelta(hours=1), minutes=30)
    assert clock.now() == NEW_YEAR + timedelta(minutes=90)


def test_other_processes_see_the_same_time() -> None:
    """Who maps the word has the clock, with its later steps."""
    clock = SettableClock()
    other = SettableClock(SharedWord(clock.share()))
    clock.set(NEW_YEAR)
    clock.advance(seconds=1)
    assert other.now() == NEW_YEAR + timedelta(seconds=1)
    assert other.source().wall() == other.source().boot() == other.now().timestamp()


def test_steps_that_no_database_can_follow_are_refused() -> None:
    """Without an offset, back, and before what a database has seen; before one is opened, any moment will do."""
    clock = SettableClock()
    clock.set(NEW_YEAR)
    clock.set(NEW_YEAR - timedelta(days=9))
    clock.source()
    for wrong in (NEW_YEAR.replace(tzinfo=None), NEW_YEAR - timedelta(days=10)):
        with pytest.raises(ValueError, match=r"offset|set the clock before"):
            clock.set(wrong)
    with pytest.raises(ValueError, match="a step back"):
        clock.advance(hours=-1)


def test_procedures_see_the_time_that_was_set(cmdlog_embedded: OpenEmbedded, cmdlog_clock: SettableClock) -> None:
    """`tx.now` is the clock's moment to the millisecond, and a lease ends when the test says so."""
    cmdlog_clock.set(NEW_YEAR)
    database = cmdlog_embedded(lease.db)
    assert database.call("time_of", item=1) == NEW_YEAR
    assert database.call("take", item=1, minutes=15) == NEW_YEAR + timedelta(minutes=15)
    cmdlog_clock.advance(minutes=14)
    with pytest.raises(cmdlog.Aborted, match="until"):
        database.call("take", item=1, minutes=15)
    cmdlog_clock.advance(minutes=1)
    assert database.call("take", item=1, minutes=15) == NEW_YEAR + timedelta(minutes=30)


@pytest.mark.slow
def test_what_happened_in_another_year_replays(cmdlog_embedded: OpenEmbedded, cmdlog_clock: SettableClock) -> None:
    """The log has the times; a replay knows no clock. A restart goes on from where the clock is."""
    cmdlog_clock.set(NEW_YEAR)
    database = cmdlog_embedded(lease.db, folder="kept")
    database.call("take", item=1, minutes=15)
    assert_replays(database)
    cmdlog_clock.advance(days=365)
    assert cmdlog_embedded(lease.db, folder="kept").call("time_of", item=1) == NEW_YEAR + timedelta(days=365)


def test_keys_and_sessions_expire_by_the_clock(cmdlog_embedded: OpenEmbedded, cmdlog_clock: SettableClock) -> None:
    """Within its window a key gives the first outcome, then it is refused, and a day later it is free again."""
    cmdlog_clock.set(NEW_YEAR)
    database = cmdlog_embedded(lease.db, partitions=1)

    def time_of_key() -> object:
        database.call("time_of", item=1)  # a partition's time passes with its calls
        return database.call("time_of", item=1, idempotency_key="k")

    assert time_of_key() == NEW_YEAR
    cmdlog_clock.advance(minutes=59)
    assert time_of_key() == NEW_YEAR
    cmdlog_clock.advance(minutes=2)
    with pytest.raises(cmdlog.SessionExpired):
        time_of_key()
    cmdlog_clock.advance(days=1, hours=2)
    assert time_of_key() == cmdlog_clock.now()


def test_unsynced_files_are_written_and_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader finds what was written; no sync reaches the operating system."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: pytest.fail("synced"))
    files, path = UnsyncedFiles(), str(tmp_path / "file")
    file = files.open(path, create=True)
    file.pwrite(b"kept", 0)
    file.fdatasync()
    file.fsync()
    files.fsync_dir(str(tmp_path))
    file.close()
    assert Path(path).read_bytes() == b"kept"


def test_a_broken_disk_refuses_writes_and_syncs(tmp_path: Path) -> None:
    """Before the fault all work, after it none does; what was written stays readable."""
    broken: list[bool] = []
    files = BreakableFiles(lambda: broken)
    file = files.open(str(tmp_path / "file"), create=True)
    file.pwrite(b"kept", 0)
    file.fdatasync()
    file.fsync()
    files.fsync_dir(str(tmp_path))
    broken.append(True)
    actions: tuple[Callable[[], object], ...] = (
        lambda: file.pwrite(b"lost", 0), file.fdatasync, file.fsync, lambda: files.fsync_dir(str(tmp_path)),
    )  # fmt: skip
    for action in actions:
        with pytest.raises(WriteFailed, match="Input/output error"):
            action()
    assert file.pread(4, 0) == b"kept"
    file.close()
