"""State files of a killed node: damaged pages are found while it serves, and rebuilt; a state is never served on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest

from cmdlog.node.embedded.embedded import open_embedded
from cmdlog.testing import SMALL
from cmdlog.wal.files import RealFiles
from cmdlog.wal.opening.home import adopt
from procedures.storage.state import PartitionState
from replay.errors import StateDamaged
from replay.state.page_check import page_problem
from replay.state.state_lock import ReaderGate
from replay.state.trust import state_path
from tests.commands import Command
from tests.node.apps.faulty import db
from tests.node.rig import rows
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
COUNTERS = 4000
SQL = "SELECT id, n FROM counters ORDER BY id"
KILLED = f"""
import os, sys
import cmdlog
from cmdlog.testing import SMALL
from tests.node.apps.faulty import db

node = cmdlog.open(sys.argv[1], db, partitions=2, **SMALL)
for future in [node.submit("bump", id=number, amount=number) for number in range({COUNTERS})]:
    future.result()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory whose node was killed."""
    folder = tmp_path / "data"
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    return folder


def damage(data: Path, partition: int) -> None:
    """Overwrites a leaf of the largest table, as a disk does that writes elsewhere."""
    path = state_path(str(data), partition)
    connection = apsw.Connection(path)
    connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    assert page_problem(path) == ""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 4096 // 2 * 4096)
        file.write(b"\x5a" * 4096)
    assert page_problem(path)


def truth(data: Path, tmp_path: Path) -> list[list[tuple[object, ...]]]:
    """What the log makes of nothing."""
    copy = tmp_path / "truth"
    shutil.copytree(data, copy)
    adopt(RealFiles(), str(copy))
    shutil.rmtree(copy / "state")
    with open_embedded(copy, db, partitions=2, **SMALL):
        return [rows(copy, partition, SQL) for partition in range(2)]


def test_damaged_state_ends_the_node_and_is_rebuilt(killed: Path, tmp_path: Path) -> None:
    """The node that finds it fails by name; the next one has rebuilt that partition, and that alone, to the truth."""
    expected = truth(killed, tmp_path)
    damage(killed, 1)
    with open_embedded(killed, db, partitions=2, **SMALL) as opened:
        wait_for(lambda: opened.node.error is not None)
        assert isinstance(opened.node.error, StateDamaged)
        assert state_path(str(killed), 1) in str(opened.node.error)
        assert list(opened.status()["state_check"]["damaged"]) == ["1"]
    with open_embedded(killed, db, partitions=2, **SMALL) as opened:
        assert [told["from"] for told in opened.node.recovery] == ["state", "empty"]
        assert [rows(killed, partition, SQL) for partition in range(2)] == expected


def test_check_of_a_table_leaves_while_the_gate_is_shut(tmp_path: Path) -> None:
    """It lets its view of the state go, so that the site can empty the log, and begins again behind it."""
    path = str(tmp_path / "p0.sqlite")
    state = PartitionState.open(path, partition=0)
    state.connection.execute("CREATE TABLE many (id INTEGER NOT NULL PRIMARY KEY)")
    state.connection.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) INSERT INTO many SELECT i FROM n"
    )
    gate, inside, checked = ReaderGate(path), threading.Event(), list[str]()

    def rest() -> None:
        if not inside.is_set():
            gate.shut()
            inside.set()

    check = threading.Thread(target=lambda: checked.append(page_problem(path, rest)))
    check.start()
    wait_for(inside.is_set)
    wait_for(state.empty_log)
    assert checked == []
    gate.open()
    check.join()
    assert checked == [""]
    state.close()


def test_whole_states_are_checked_once(killed: Path) -> None:
    """After a kill each state is checked, and nothing happens; after an orderly stop there is nothing to check."""
    with open_embedded(killed, db, partitions=2, **SMALL) as opened:
        wait_for(lambda: opened.status()["state_check"]["checked"] == 2)
        assert opened.node.error is None
    with open_embedded(killed, db, partitions=2, **SMALL) as opened:
        assert opened.status()["state_check"] == {"running": False, "wanted": 0, "checked": 0, "damaged": {}}


def test_recover_in_place_rebuilds_a_damaged_state(killed: Path, tmp_path: Path, command: Command) -> None:
    """The command checks before it trusts, and leaves the truth."""
    expected = truth(killed, tmp_path)
    damage(killed, 0)
    code, told = command("recover", killed, "--json")
    assert (code, [part["source"] for part in told["partitions"]]) == (0, ["empty", "state"])
    assert [rows(killed, partition, SQL) for partition in range(2)] == expected
