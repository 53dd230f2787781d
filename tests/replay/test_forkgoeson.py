"""A fork that is broken off, hangs or is killed: the call is named, and the same fork goes on from where it stood."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.directory.instance import write_marker
from cmdlog.wal.errors import NotEmpty, WrongDirectory
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from procedures import Database
from procedures.storage.state import PartitionState
from replay import engine
from replay.errors import Interrupted
from replay.fork import unfinished
from replay.fork.fork import START, fork
from replay.fork.tally import ForkReport, RerunProgress
from replay.state.trust import state_path
from tests.commands import Command
from tests.replay.ledgers import LEDGER, SMALL, Call, Versions, importable, logged_calls, rows_of

pytestmark = pytest.mark.slow
ACCOUNTS = 6
TRAPPED = 131  # amount of the deposit that hangs, or ends the process, if the environment says so
TRAP = f"""
    what = os.environ.get("LEDGER_TRAP") if amount == {TRAPPED} else ""
    print("in deposit", amount, flush=True)
    while what == "hang":
        pass
    if what == "end":
        os._exit(3)
    tx.execute(ADD"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    """Where versions of the application are made."""
    with importable(tmp_path_factory.mktemp("versions")) as versions:
        versions.load("ledger_trap", "import os\n" + LEDGER.replace("    tx.execute(ADD", TRAP[1:]).replace("* 1", "* 2"))
        yield versions


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node of two partitions: accounts, then deposits in batches of many sizes."""
    folder = tmp_path_factory.mktemp("ledger") / "node"
    with cmdlog.open(folder, versions.load("ledger_v1"), partitions=2, **SMALL) as opened:
        for account in range(ACCOUNTS):
            opened.call("begin", account=account)
        for burst in range(8):
            answers = [opened.submit("deposit", account=n % ACCOUNTS, amount=100 + 10 * burst + n) for n in range(1 + burst)]
            for answer in answers:
                answer.result()
        opened.call("set_rate", name="eur", rate=3)
    return folder


def forked(node: Path, db: Database, out: Path, at: int, **options: Any) -> ForkReport:
    """Forks into a directory."""
    return fork(RealFiles(), str(node), at=at, db=db, out=str(out), **options)


def deposits_of(node: Path) -> list[Call]:
    """Calls of `deposit`, by transaction id."""
    return [call for call in logged_calls(node) if len(call.params) == 2 and type(call.params[0]) is int]


def told(report: ForkReport) -> dict[str, Any]:
    """What is the same however often a fork was broken off."""
    changing = ("cluster_id", "seconds", "already")
    return {name: value for name, value in report.to_json().items() if name not in changing}


@pytest.mark.parametrize(
    ("moment", "middle"),
    [
        *[("in", True), ("behind", False)],
        *(pytest.param(*of, marks=pytest.mark.torture) for of in [("in", False), ("behind", True)]),
    ],
)
def test_fork_goes_on_from_every_transaction(
    node: Path, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *, middle: bool
) -> None:
    """Broken off in front of or behind each of its commits, it says in the end what one run says, and runs no call twice."""
    db = versions.load("ledger_v2", factor="amount * 2")
    at = deposits_of(node)[9].txn_id if middle else START
    whole = forked(node, db, tmp_path / "whole", at)
    monkeypatch.setattr(engine, "GROUP_CALLS_MAX", 1)
    kept = unfinished.save_progress
    applied: list[tuple[int, int]] = []
    turns = iter(range(10_000))

    def keep(state: PartitionState, done: RerunProgress) -> None:
        ends = next(turns) % 2  # every other commit is the last of its run
        if ends and moment == "in":
            raise KeyboardInterrupt
        kept(state, done)
        applied.append((state.partition, done.at))
        if ends:
            state.save(state.position, state.clock)
            state.connection.execute("COMMIT")
            raise KeyboardInterrupt

    monkeypatch.setattr(unfinished, "save_progress", keep)
    broken_off = 0
    report: ForkReport | None = None
    while report is None:
        try:
            report = forked(node, db, tmp_path / "out", at)
        except Interrupted:
            assert not (tmp_path / "out" / "instance.json").exists()
            broken_off += 1
    assert broken_off > 4
    assert len(applied) == len(set(applied)) >= 10
    assert report is not None
    assert told(report) == told(whole)
    assert report.tally.first is not None
    assert report.tally.first.live_status == "OK"
    for table in ("accounts", "rates"):
        assert rows_of(tmp_path / "out", table) == rows_of(tmp_path / "whole", table)
    assert names_in(tmp_path / "out") == names_in(tmp_path / "whole")
    with cmdlog.open(tmp_path / "out", db, **SMALL) as opened:
        assert opened.call("deposit", account=0, amount=1)


def names_in(out: Path) -> list[str]:
    """Tables of the first partition's state, ours included."""
    connection = PartitionState.open(state_path(str(out), 0), partition=0).connection
    found = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema ORDER BY name")]
    connection.close()
    return found


def test_last_steps_are_gone_on_with_and_a_finished_fork_is_done(
    node: Path, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the new log is made repeats no call; once more behind the end, the same fork says what it said."""
    db = versions.load("ledger_v2", factor="amount * 2")
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        forked(node, db, tmp_path / "out", START)
    monkeypatch.undo()
    monkeypatch.setattr("replay.fork.fork.run_here", None)  # nothing of it is called
    report = forked(node, db, tmp_path / "out", START)
    assert not report.already
    again = forked(node, db, tmp_path / "out", START)
    assert again.already
    assert told(again) == told(report)
    assert again.identity == report.identity


def test_only_the_very_same_fork_goes_on(node: Path, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code, another moment, another treatment of misfits, a foreign file: refused by name, and nothing is touched."""
    db, out = versions.load("ledger_v2", factor="amount * 2"), tmp_path / "out"
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        forked(node, db, out, START)
    monkeypatch.undo()
    before = sorted(path.name for path in out.rglob("*"))
    at = deposits_of(node)[3].txn_id
    for options in ({"at": at}, {"at": START, "until": at}, {"at": START, "missing": "skip"}):
        with pytest.raises(WrongDirectory, match=r"contains an unfinished fork of .*, but you asked for a fork of"):
            forked(node, db, out, **options)
    with pytest.raises(WrongDirectory, match=r"contains an unfinished fork of .*, but you asked for a fork of"):
        forked(node, versions.load("ledger_v1"), out, START)
    (out / "precious").touch()
    with pytest.raises(NotEmpty, match="precious"):
        forked(node, db, out, START)
    (out / "precious").unlink()
    assert sorted(path.name for path in out.rglob("*")) == before
    write_marker(RealFiles(), str(out), "fork")
    with pytest.raises(NotEmpty, match="contains an unfinished fork"):
        forked(node, db, out, START)


def test_states_of_another_boot_begin_anew(
    node: Path, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut what the files hold counts for nothing, nor what was noted of them."""
    db = versions.load("ledger_v2", factor="amount * 2")
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        forked(node, db, tmp_path / "out", START)
    monkeypatch.undo()
    monkeypatch.setattr(RealFiles, "boot_id", lambda _self: "another")
    for partition in range(2):
        state = PartitionState.open(state_path(str(tmp_path / "out"), partition), partition=partition)
        state.connection.execute("UPDATE accounts SET balance = -1")
        state.close()
    report = forked(node, db, tmp_path / "out", START)
    assert told(report) == told(forked(node, db, tmp_path / "whole", START))
    assert rows_of(tmp_path / "out", "accounts") == rows_of(tmp_path / "whole", "accounts")


STUCK = {"hang": "ran for more than 1 s", "end": "ended: exit code 3"}


@pytest.mark.parametrize("trap", STUCK)
def test_call_that_does_not_come_back_is_named(
    node: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """One that hangs, or ends its process, ends the fork with its place; the worker that ran it is gone."""
    monkeypatch.setenv("LEDGER_TRAP", trap)
    call = next(call for call in deposits_of(node) if call.params[1] == TRAPPED)
    arguments = ("--at", "start", "--app", "ledger_trap:db", "--to", tmp_path / "out", "--call-timeout-s", "1")
    code, failed = command("fork", node, *arguments, "--json")
    assert (code, failed["error"]["kind"]) == (16, "CallStuck"), failed
    assert STUCK[trap] in failed["error"]["message"]
    place = failed["error"]["place"]
    assert (place["txn_id"], place["position"], place["procedure"]) == (str(call.txn_id), call.position, "deposit")
