"""Forks: the same calls with other code from one transaction on, in a node of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.node.outcome import CallOutcome
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WrongDirectory
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.errors import SchemaConflict
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.idempotency.session_calls import sent_name
from replay.errors import BadUntil, Interrupted, UntilBeyond, UntilUnreachable
from replay.fork.fork import START, fork
from replay.fork.new_node import OtherDatabase
from replay.fork.rerun import CallUnfit
from replay.fork.tally import ForkReport
from tests.node.rig import Pending
from tests.procedures.sites import uuid7
from tests.replay.ledgers import LEDGER, SMALL, Call, Versions, logged_calls, rows_of

pytestmark = pytest.mark.slow
ACCOUNTS = 8


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node of two partitions: accounts, a rate, deposits one by one and in batches."""
    db = versions.load("ledger_v1")
    folder = tmp_path_factory.mktemp("ledger") / "node"
    with cmdlog.open(folder, db, partitions=2, **SMALL) as opened:
        for account in range(ACCOUNTS):
            opened.call("begin", account=account)
        opened.call("set_rate", name="eur", rate=3)
        for n in range(10):
            opened.call("deposit", account=n % ACCOUNTS, amount=n, idempotency_key=f"k{n % 7}-{n % ACCOUNTS}")
        for answer in [opened.submit("deposit", account=n % ACCOUNTS, amount=100 + n) for n in range(60)]:
            answer.result()
        numbered_deposits(opened)
        opened.call("set_rate", name="usd", rate=4)  # behind it stand the digests of all before
    return folder


def numbered_deposits(opened: cmdlog.Embedded) -> None:
    """Calls of a client's session, which sees their outcomes late; nothing is deposited by those that come twice."""
    session = key_fingerprint("embedded", uuid7(int(time.time() * 1000)))
    route = opened._node.routes["deposit"]
    for number in (1, 2, 3, 3, 4, 2, 5, 6, 7, 6, 8):
        pending = Pending()
        params = route.procedure.bind({"account": number % ACCOUNTS, "amount": 0 if number in (2, 3, 6) else number})
        opened._node.call(route, params, key=sent_name(session, number, max(0, number - 5)), done=pending.done)
        opened._node.help()
        assert isinstance(pending.wait(), CallOutcome)


def forked(node: Path, db: Database, at: int, out: Path, **options: Any) -> ForkReport:
    """Forks into a new directory."""
    return fork(RealFiles(), str(node), at=at, db=db, out=str(out), **options)


def deposits_of(node: Path) -> list[Call]:
    """Calls of `deposit`, by transaction id."""
    return [call for call in logged_calls(node) if len(call.params) == 2 and type(call.params[0]) is int]


def expected(node: Path, at: int, factor: int, until: int | None = None) -> dict[int, int]:
    """The model: balances when deposits behind `at` count `factor` times."""
    balances = dict.fromkeys(range(ACCOUNTS), 0)
    for call in deposits_of(node):
        if until is None or call.txn_id <= until:
            balances[call.params[0]] += call.params[1] * (factor if call.txn_id > at else 1)
    return balances


def balances_of(directory: Path) -> dict[int, int]:
    """What a node holds."""
    return {row[0]: row[1] for row in rows_of(directory, "accounts")}


def test_equal_code_gives_equal_states(node: Path, versions: Versions, tmp_path: Path) -> None:
    """From the start and from the middle, the very same code ends where the live run did, with no other outcome."""
    db = versions.load("ledger_v1")
    middle = deposits_of(node)[30].txn_id
    for n, at in enumerate((START, middle)):
        report = forked(node, db, at, tmp_path / f"out{n}")
        assert (report.tally.changed, report.tally.first) == (0, None)
        assert report.tally.compared == report.calls
        assert report.kept + report.calls == len(logged_calls(node))
        for table in ("accounts", "rates"):
            assert rows_of(tmp_path / f"out{n}", table) == rows_of(node, table)


def test_other_factor_counts_from_the_fork_on(node: Path, versions: Versions, tmp_path: Path) -> None:
    """Deposits up to the fork count once, those behind it twice; a fork may cut a batch, and end within one."""
    doubled = versions.load("ledger_v2", factor="amount * 2")
    calls = deposits_of(node)
    inside = [call for call in calls if 0 < call.position < call.count - 1]
    assert inside, "no batch of three calls: the test is empty"
    moments: list[tuple[int, int | None]] = [
        (START, None),
        (calls[5].txn_id, None),
        (inside[0].txn_id, None),
        (calls[-1].txn_id, None),
    ]
    moments += [(inside[0].txn_id, inside[0].txn_id), (calls[3].txn_id, inside[0].txn_id), (inside[0].txn_id, inside[-1].txn_id)]
    for n, (at, until) in enumerate(moments):
        report = forked(node, doubled, at, tmp_path / f"out{n}", until=until)
        assert balances_of(tmp_path / f"out{n}") == expected(node, at, 2, until), (at, until)
        behind = [call.txn_id for call in logged_calls(node) if at < call.txn_id <= (until or call.txn_id)]
        assert report.calls == len(behind)
        if (first := report.tally.first) is not None:
            assert (first.live_status, first.status) == ("OK", "OK")
            assert first.outcome - first.live_outcome == first.params[1]


def test_first_changed_call_is_named(node: Path, versions: Versions, tmp_path: Path) -> None:
    """The report counts calls that ended otherwise and tells the first of them in full."""
    report = forked(node, versions.load("ledger_v2", factor="amount * 2"), START, tmp_path / "out")
    first = report.tally.first
    told = next(call for call in deposits_of(node) if call.params[1])  # a deposit of 0 is doubled to 0
    assert first is not None
    assert (first.txn_id, first.partition, first.index, first.position) == (
        told.txn_id,
        told.partition,
        told.index,
        told.position,
    )
    assert (first.procedure, first.params, first.status, first.outcome) == ("deposit", told.params, "OK", 2 * told.params[1])
    assert (first.live_status, first.live_outcome) == ("OK", told.params[1])
    assert 0 < report.tally.changed < report.tally.compared


def test_fork_is_a_node_of_its_own_that_can_be_served(node: Path, versions: Versions, tmp_path: Path) -> None:
    """It has another cluster id and says where it comes from; its only catalog is the code; calls go on with higher ids."""
    db = versions.load("ledger_v2", factor="amount * 2")
    at = deposits_of(node)[9].txn_id
    forked(node, db, at, tmp_path / "out")
    old, new = (load_instance(RealFiles(), str(folder)) for folder in (node, tmp_path / "out"))
    assert new.identity.cluster_id != old.identity.cluster_id
    assert new.forked_from is not None
    assert (new.forked_from.cluster_id, new.forked_from.txn_id) == (old.identity.cluster_id, at)
    with cmdlog.open(tmp_path / "out", db, **SMALL) as opened:
        assert [part["from"] for part in opened.status()["start"]["recovery"]] == ["state", "state"]
        result = opened.invoke("deposit", {"account": 3, "amount": 5})
        assert result.value == expected(node, at, 2)[3] + 10
        assert result.txn_id > logged_calls(node)[-1].txn_id


def test_new_tables_are_made_at_the_fork(node: Path, versions: Versions, tmp_path: Path) -> None:
    """A table that only the other code declares is there, as at a start with changed code."""
    more = 'db = Database("ledger")\ndb.table("log", Column("id", Integer, primary_key=True), partition_by="id")\n'
    db = versions.load("ledger_v3", key=more)
    for n, at in enumerate((START, deposits_of(node)[20].txn_id)):
        forked(node, db, at, tmp_path / f"out{n}")
        assert rows_of(tmp_path / f"out{n}", "log") == []
        assert rows_of(tmp_path / f"out{n}", "accounts") == rows_of(node, "accounts")


def test_table_declared_otherwise_is_refused_unless_it_is_from_the_start(node: Path, versions: Versions, tmp_path: Path) -> None:
    """Rows that are there cannot be bent; from the start the code makes its own tables."""
    db = versions.load("ledger_v4", note='    Column("note", Text, server_default="new"),\n')
    with pytest.raises(SchemaConflict, match="accounts"):
        forked(node, db, deposits_of(node)[0].txn_id, tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())
    forked(node, db, START, tmp_path / "out")
    assert {row[2] for row in rows_of(tmp_path / "out", "accounts")} == {"new"}


def test_parameters_are_given_by_name(node: Path, versions: Versions, tmp_path: Path) -> None:
    """Another order and a new parameter with a default fit."""
    db = versions.load("ledger_v5", deposit="def deposit(tx, amount: int, account: int, extra: int = 0) -> int:")
    report = forked(node, db, START, tmp_path / "out")
    assert report.tally.changed == 0
    assert rows_of(tmp_path / "out", "accounts") == rows_of(node, "accounts")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deposit": "def pay(tx, account: int, amount: int) -> int:"}, "no such procedure"),
        ({"deposit": "def deposit(tx, account: int, amount: int, why: str) -> int:"}, "why"),
        ({"deposit": "def deposit(tx, account: int, amount: str) -> int:"}, "expected a string"),
        ({"set_rate": '@db.procedure(partition_by="name")\n'}, "ran on all partitions"),
    ],
)
def test_call_that_does_not_fit_is_named(
    node: Path, versions: Versions, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    """Exit code 13 with invocation and both signatures; with "skip" such calls are left out, counted and listed."""
    db = versions.load("ledger_other", **changes)
    with pytest.raises(CallUnfit, match=words) as refused:
        forked(node, db, START, tmp_path / "out")
    unfit = "set_rate" if "set_rate" in changes else "deposit"
    told = [
        call for call in logged_calls(node) if (type(call.params[0]) is str) == (unfit == "set_rate") and len(call.params) == 2
    ]
    assert refused.value.exit_code == 13
    assert f"transaction {told[0].txn_id} (partition" in str(refused.value)
    assert f"{unfit}({'name, rate' if unfit == 'set_rate' else 'account, amount'})" in str(refused.value)
    assert not any((tmp_path / "out").iterdir())
    report = forked(node, db, START, tmp_path / "out", missing="skip")
    assert sum(of.calls for of in report.tally.left_out.values()) == len(told)
    assert {of.procedure for of in report.tally.left_out.values()} == {unfit}
    assert min(of.first_txn_id for of in report.tally.left_out.values()) == told[0].txn_id
    assert report.calls == len(logged_calls(node)) - len(told)


def test_other_partition_is_a_misfit(node: Path, versions: Versions, tmp_path: Path) -> None:
    """A call whose partitioning parameter became another one would leave rows where no call finds them."""
    source = LEDGER.replace(
        '@db.procedure(partition_by="account")\ndef deposit', '@db.procedure(partition_by="amount")\ndef deposit'
    )
    with pytest.raises(CallUnfit, match="would run on"):
        forked(node, versions.load("ledger_v6", source), START, tmp_path / "out")


def test_bad_moments_and_places_are_refused(node: Path, versions: Versions, tmp_path: Path) -> None:
    """An end before the fork, a moment that never was, a directory in use, another application."""
    db = versions.load("ledger_v1")
    last = logged_calls(node)[-1].txn_id
    with pytest.raises(BadUntil, match="before it begins"):
        forked(node, db, last, tmp_path / "out", until=last - 1)
    with pytest.raises(UntilBeyond, match="was not reached"):
        forked(node, db, START, tmp_path / "out", until=last << 1)
    with pytest.raises(WrongDirectory):
        forked(node, db, START, node / "inside")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(WrongDirectory):
        forked(node, db, START, tmp_path / "full")
    other = versions.load("ledger_other", key='db = Database("shop")\n')
    with pytest.raises(OtherDatabase, match="ledger"):
        forked(node, other, START, tmp_path / "out")


def test_fork_from_a_start_that_the_log_has_lost_is_refused(node: Path, versions: Versions, tmp_path: Path) -> None:
    """A fork's own log begins with states: what was before is not there."""
    db = versions.load("ledger_v1")
    forked(node, db, START, tmp_path / "out")
    with pytest.raises(UntilUnreachable, match="everything after"):
        forked(tmp_path / "out", db, START, tmp_path / "again")


def test_fork_that_is_broken_off_says_in_which_call(node: Path, versions: Versions, tmp_path: Path) -> None:
    """Ctrl-C within a procedure is no outcome of it: the fork ends, its directory is no node, and no other fork begins there."""
    source = LEDGER.replace("    tx.execute(ADD", "    if amount == 7:\n        raise KeyboardInterrupt\n    tx.execute(ADD")
    call = next(call for call in deposits_of(node) if call.params[1] == 7)
    with pytest.raises(Interrupted, match=f"interrupted in deposit, transaction {call.txn_id}\n.*again to resume"):
        forked(node, versions.load("ledger_broken", source), START, tmp_path / "out")
    assert not (tmp_path / "out" / "instance.json").exists()
    with pytest.raises(WrongDirectory, match=r"with code .*, but you asked for a fork of"):
        forked(node, versions.load("ledger_v1"), START, tmp_path / "out")
