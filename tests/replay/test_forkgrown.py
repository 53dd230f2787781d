"""A fork that was broken off, gone on with when its log has grown: as one run over the grown log, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.errors import WrongDirectory
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.log import Log
from procedures import Database
from procedures.storage.state import PartitionState
from replay.errors import Interrupted
from replay.fork import unfinished
from replay.fork.fork import START, fork
from replay.fork.tally import ForkReport, RerunProgress
from tests.replay.rig import DEPOSIT, Rig, balances_of
from tests.replay.test_forkgoeson import told

pytestmark = pytest.mark.slow


class Growing:
    """A node at work, and forks of it. The last batch of partition 0 has no digest in the log yet."""

    def __init__(self, folder: Path, db: Database) -> None:
        (folder / "source").mkdir()
        self.rig, self.folder, self.db = Rig(folder / "source"), folder, db
        self.rig.deposits(2)
        self.middle = self.rig.history[-5][0]  # within a batch
        self.rig.deposits(1)
        self.last = self.rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [1, 6]), (DEPOSIT, [2, 7])], skips=frozenset({1}))

    def skip(self) -> None:
        """Now the log says which call of the last batch was taken out."""
        value = {"index": self.last, "position": 1, "txn_id": self.rig.tick(1, 0)[0]}
        self.rig.entry(0, RecordKind.SKIP, value, live=False)
        for p in range(self.rig.partitions):
            self.rig.engines[p].close()
        self.rig.engines = {}

    def fork(self, name: str, at: int, **options: Any) -> ForkReport:
        """Into a directory of that name."""
        return fork(RealFiles(), self.rig.directory, at=at, db=self.db, out=str(self.folder / name), **options)

    def break_off(self, name: str, at: int, behind: int) -> bool:
        """Behind so many commits; whether it came to that."""
        kept, commits = unfinished.save_progress, 0

        def keep(state: PartitionState, done: RerunProgress) -> None:
            nonlocal commits
            kept(state, done)
            commits += 1
            if commits > behind:
                state.save(state.position, state.clock)
                state.connection.execute("COMMIT")
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unfinished, "save_progress", keep)
            try:
                self.fork(name, at)
            except Interrupted:
                return True
        return False

    def break_off_log(self, name: str, at: int) -> None:
        """While the new log is made."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(Interrupted):
                self.fork(name, at)

    def balances(self, name: str) -> dict[int, int]:
        return balances_of(str(self.folder / name))


def test_fork_whose_calls_had_all_run_ends_where_they_did(tripled: Database, tmp_path: Path) -> None:
    """Broken off while its log is made, it is as if nothing had come since; ids go on above what the old log knows now."""
    node = Growing(tmp_path, tripled)
    whole = node.fork("whole", START)
    node.break_off_log("out", START)
    node.rig.deposits(5)
    report = node.fork("out", START)
    assert told(report) == told(whole)
    assert node.balances("out") == node.balances("whole")
    wal = Log.open(RealFiles(), str(tmp_path / "out"))
    assert wal.recovered.txn_id_max >= node.rig.last_txn
    wal.close()


@pytest.mark.parametrize("middle", [False, True], ids=["start", "middle"])
def test_call_that_had_run_and_was_taken_out_since_is_run_no_more(tripled: Database, tmp_path: Path, *, middle: bool) -> None:
    """Broken off while its log is made: what is noted of its calls does not count then."""
    node = Growing(tmp_path, tripled)
    at = node.middle if middle else START
    node.break_off_log("out", at)
    node.skip()
    whole = node.fork("whole", at)
    assert told(node.fork("out", at)) == told(whole)
    assert node.balances("out") == node.balances("whole")


def test_fork_whose_beginning_the_log_tells_otherwise_is_refused(tripled: Database, tmp_path: Path) -> None:
    """A call in front of the fork, which may have run, was taken out since; nothing in the directory changes."""
    node = Growing(tmp_path, tripled)
    at = node.rig.history[-1][0]
    node.rig.notes = []  # a digest would say that no call is taken out
    node.rig.batch(0, [(DEPOSIT, [0, 1])], live=False)
    node.break_off_log("out", at)
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    node.skip()
    with pytest.raises(WrongDirectory, match=r"has changed for the calls up to there\. Delete the directory"):
        node.fork("out", at)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before
