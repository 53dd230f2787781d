"""Recovery into another number of partitions: the same rows, the same answers under old keys, and calls that find both."""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Column, Integer

from bench import _tpcc as tpcc
from cmdlog.errors import Aborted, KeyReused
from cmdlog.node.embedded.embedded import Embedded, open_embedded
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.settings import BadSetting
from cmdlog.node.slot_map import SlotMap
from cmdlog.wal.directory.instance import Identity, Instance, load_instance
from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX, txn_tick
from procedures import Database, Transaction
from procedures.declaration.hash_slots import partition_by_slot, slot_of
from procedures.declaration.row_placement import check_kinds
from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import Status, key_fingerprint
from procedures.idempotency.session_calls import sent_name
from procedures.samples import bank
from procedures.storage.state import PartitionState, Position
from replay.errors import Interrupted, ReshapeRefused
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from replay.repartition.repartition import check_shape, reshape
from replay.results import WorkPace
from replay.state.trust import Trust, read_position, state_path
from snapshot.catalog import check, list_snapshots
from tests.node.apps import voter
from tests.node.rig import Pending, open_node
from tests.procedures.sites import uuid7
from tests.replay import shapes
from tests.replay.shapes import CHECKSUM, FILES, INDEX, TERM, TXN, Crafted, home, made, refusal, tables

SMALL: Final[dict[str, Any]] = {"segment_bytes": 1 << 20, "segments": 8, "log_reserve_bytes": 64 << 10, "call_bytes_max": 100_000}
Call = tuple[str, dict[str, Any]]


def opened(directory: Path, db: Database, **settings: Any) -> Embedded:
    """The node in this process."""
    return open_embedded(str(directory), db, **{**SMALL, **settings})


def reshaped(source: Path, out: Path, partitions: int, **given: Any) -> Path:
    """The node `out` made from `source`."""
    rebuild(make_plan(FILES, str(source), PAST), FILES, str(out), workers=0, partitions=partitions, **given)
    return out


def answer_of(node: Embedded, call: Call, key: str | None = None) -> Any:
    """What a caller is told: value and transaction, or the error's kind and text."""
    name, params = call
    try:
        result = node.invoke(name, params, idempotency_key=key)
    except (Aborted, KeyReused) as error:
        return type(error).__name__, str(error)
    return result.value, result.txn_id


def whole(directory: Path, partitions: int, db: Database) -> dict[str, list[Any]]:
    """Rows of all partitions; each partitioned row is where its slot says, each replicated table is the same everywhere."""
    by_slot, found = partition_by_slot(partitions), [tables(directory, p, db) for p in range(partitions)]
    rows = dict(found[0])
    for name, info in db.tables.items():
        if info.partition_by is None:
            assert all(of[name] == rows[name] for of in found), name
            continue
        at = list(info.table.columns.keys()).index(info.partition_by)
        assert all(by_slot[slot_of(row[at])] == p for p, of in enumerate(found) for row in of[name]), name
        rows[name] = sorted(row for of in found for row in of[name])
    return rows


def bank_calls(seed: int, count: int) -> list[Call]:
    """Transfers, deposits and rates over some branches; some abort."""
    chance = random.Random(seed)
    calls: list[Call] = [("set_rate", {"name": "base", "basis_points": 150})]
    calls += [
        ("open_accounts", {"branch": branch, "first": 1, "count": 4, "savings": 1000, "checking": 500}) for branch in range(12)
    ]
    for _ in range(count):
        branch = chance.randrange(14)  # two of them have no accounts
        one, two = chance.sample(range(1, 6), 2)
        kinds: list[Call] = [
            ("transfer", {"branch": branch, "source": one, "target": two, "amount": chance.randrange(1, 400)}),
            ("transact_savings", {"branch": branch, "customer": one, "amount": chance.randrange(-600, 600)}),
            ("set_rate", {"name": chance.choice("abc"), "basis_points": chance.randrange(500)}),
            ("pay_interest", {"branch": branch, "customer": one, "rate": "base"}),
        ]
        calls.append(chance.choice(kinds))
    return calls


def told(node: Embedded, calls: Iterable[Call]) -> dict[str, tuple[Call, Any]]:
    """Every call under a key of its own, with what it was answered."""
    return {f"key {at}": (call, answer_of(node, call, f"key {at}")) for at, call in enumerate(calls)}


def check_keys(node: Embedded, known: Mapping[str, tuple[Call, Any]]) -> None:
    """Every retry gets the stored answer; every other request under the key is refused, wherever it is routed."""
    for key, (call, answer) in known.items():
        assert answer_of(node, call, key) == answer, (key, call)
        for branch in (1, 4, 7, 10):  # on every partition
            other: Call = ("transact_savings", {"branch": branch, "customer": 1, "amount": 1})
            if other != call:
                assert answer_of(node, other, key)[0] == "KeyReused", (key, call, branch)
        assert answer_of(node, ("set_rate", {"name": "z", "basis_points": 9}), key)[0] == "KeyReused"


def numbered(node: Node, call: Call, sent: bytes) -> tuple[int, int, bytes]:
    """What a call of a session is answered: status, transaction, body."""
    name, params = call
    pending, route = Pending(), node.routes[name]
    node.call(route, route.procedure.bind(params), key=sent, done=pending.done)
    reply = pending.wait()
    assert isinstance(reply, CallOutcome), reply
    return reply.status, reply.txn_id, reply.body


@pytest.mark.slow
def test_numbers_of_sessions_survive_any_shape(tmp_path: Path) -> None:
    """1 -> 3 -> 2 partitions, with calls on the way: every retry above the floor gets its first answer, whatever partition it
    is routed to; another request under the number, and what the client has seen, is refused."""
    session, seen = key_fingerprint("", uuid7(int(time.time() * 1000))), 3
    calls = dict(enumerate(bank_calls(1, 16), 1))
    source = tmp_path / "1"
    node = open_node(source, app=bank.db, partitions=1, inline=True)
    answers = {number: numbered(node, call, sent_name(session, number, 0)) for number, call in calls.items()}
    node.close()
    for step, partitions in enumerate((3, 2)):
        source = reshaped(source, tmp_path / f"of {partitions}", partitions)
        node = open_node(source, app=bank.db, inline=True)
        for number, call in reversed(calls.items()):  # the floor comes with the first one
            found = numbered(node, call, sent_name(session, number, min(seen, number - 1)))
            assert found == answers[number] if number > seen else found[0] == Status.SESSION_EXPIRED, (number, call)
            for branch in (1, 4, 7, 10):  # on every partition
                other: Call = ("transact_savings", {"branch": branch, "customer": 1, "amount": 1})
                refused = Status.KEY_REUSED if number > seen else Status.SESSION_EXPIRED
                assert numbered(node, other, sent_name(session, number, 0))[0] == refused, (number, branch)
        for branch in range(8):
            number, late = len(calls) + 1, ("transact_savings", {"branch": branch, "customer": 2, "amount": 5 + step})
            calls[number], answers[number] = late, numbered(node, late, sent_name(session, number, seen))
        seen += 4
        node.close()


@pytest.mark.slow
def test_rows_and_answers_survive_any_shape_and_the_way_back(tmp_path: Path) -> None:
    """1 -> 3 -> 2 -> 1 partitions: the rows of the start, and every key, also those used on the way, has its first answer."""
    source = tmp_path / "1"
    with opened(source, bank.db, partitions=1) as node:
        known = told(node, bank_calls(1, 16))
    expected = whole(source, 1, bank.db)
    for step, partitions in enumerate((3, 2, 1)):
        out = reshaped(source, tmp_path / f"{step} of {partitions}", partitions)
        assert whole(out, partitions, bank.db) == expected
        with opened(out, bank.db) as node:
            check_keys(node, known)
            late: dict[str, tuple[Call, Any]] = {}
            for branch in range(8):
                call: Call = ("transact_savings", {"branch": branch, "customer": 2, "amount": 5})
                late[f"late {step} {branch}"] = (call, answer_of(node, call, f"late {step} {branch}"))
            rate: Call = ("set_rate", {"name": f"step {step}", "basis_points": step})
            late[f"late rate {step}"] = (rate, answer_of(node, rate, f"late rate {step}"))
            assert late[f"late rate {step}"][1][0] is None
            check_keys(node, late)
            known |= late
        expected = whole(out, partitions, bank.db)
        source = out


@pytest.mark.slow
def test_result_is_a_node_that_recovers_by_itself(tmp_path: Path) -> None:
    """Snapshots that are whole, ids above all that were given, a start with nothing but the snapshots, and further calls."""
    with opened(tmp_path / "old", voter.db, partitions=2) as node:
        for name, params in (*voter.loader(), *voter.workload(1, calls=60, phones=20)):
            answer_of(node, (name, params))
        last_id = node.invoke("add_contestants", {"names": ["A", "B"]}).txn_id
        total = sum(count for part in node.call("totals") for _, count in part)
    seen: list[WorkPace] = []
    out = reshaped(tmp_path / "old", tmp_path / "out", 16, moved=seen.append)
    assert seen[-1].done == seen[-1].total > 0
    expected = whole(out, 16, voter.db)
    assert expected == whole(tmp_path / "old", 2, voter.db)
    snapshots = list_snapshots(FILES, str(out), load_instance(FILES, str(out)).identity)
    assert [(snapshot.partition, check(FILES, snapshot)) for snapshot in snapshots] == [(p, "") for p in range(16)]
    shutil.rmtree(out / "state")
    with opened(out, voter.db) as node:
        assert len(node.call("totals")) == 16
        assert sum(count for part in node.call("totals") for _, count in part) == total
        told = [node.invoke("vote", {"phone": phone, "contestant": 1, "state": "NY"}) for phone in range(40)]
        assert [answer.value for answer in told] == [1] * 40
        assert len({answer.partition for answer in told}) > 8
        assert min(txn_tick(answer.txn_id) for answer in told) > txn_tick(last_id)
    shutil.rmtree(out / "state")
    with opened(out, voter.db) as node:
        assert sum(count for part in node.call("totals") for _, count in part) == total + 40
    with pytest.raises(BadSetting, match="created with 16"):
        opened(out, voter.db, partitions=2)


def test_nothing_is_left_of_what_is_refused(tmp_path: Path) -> None:
    """The directory is empty again, so that another attempt may use it; the same number is no other shape."""
    with opened(tmp_path / "old", shapes.db, partitions=2) as node:
        for partition in range(2):
            node.call("add_ticket", caller=home(2, partition), id=7, shop=home(2, partition))
    with pytest.raises(ReshapeRefused, match="table tickets"):
        reshaped(tmp_path / "old", tmp_path / "out", 1)
    assert list((tmp_path / "out").iterdir()) == []
    same = reshaped(tmp_path / "old", tmp_path / "out", 2)
    assert whole(same, 2, shapes.db) == whole(tmp_path / "old", 2, shapes.db)


def test_a_recovery_that_is_broken_off_while_rows_move_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C then costs no replay: the same command again replays nothing and makes the node."""
    with opened(tmp_path / "old", voter.db, partitions=2) as node:
        for name, params in (*voter.loader(), *voter.workload(1, calls=40, phones=20)):
            answer_of(node, (name, params))
    plan = make_plan(FILES, str(tmp_path / "old"), PAST)

    def stop(_: WorkPace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.repartition.repartition.REPORT_EVERY_ROWS", 10)
    with pytest.raises(Interrupted):
        rebuild(plan, FILES, str(tmp_path / "out"), workers=0, partitions=3, moved=stop)
    report = rebuild(plan, FILES, str(tmp_path / "out"), workers=0, partitions=3)
    assert report.calls == 0
    assert whole(tmp_path / "out", 3, voter.db) == whole(tmp_path / "old", 2, voter.db)


def test_a_row_goes_by_the_wire_form_of_its_partition_value(tmp_path: Path) -> None:
    """Times without a fraction and bytes, which columns store in another form than calls are routed by, land where calls look."""
    node = Crafted(tmp_path, 1)
    moments = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in range(1, 9)]
    for moment in moments:
        node.add(0, "times", at=moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), n=1)
    for n in range(8):
        node.add(0, "blobs", data=bytes([n, 200]))
    found, slots = made(node, 3), SlotMap(3)
    for name, column, value_of in (
        ("add_time", "times", datetime.fromisoformat),
        ("add_blob", "blobs", bytes),
    ):
        procedure = shapes.db.procedures[name]
        for partition, rows in enumerate(found):
            for row in rows[column]:
                given = {"at": value_of(row[0]), "n": 1} if name == "add_time" else {"data": value_of(row[0])}
                assert slots.partition_of(procedure, procedure.bind(given)) == partition
    assert [sum(len(rows[name]) for rows in found) for name in ("times", "blobs")] == [8, 8]


def test_indexes_references_and_generated_columns_come_along(tmp_path: Path) -> None:
    """The new states have the same tables and indexes, and an index that answers; generated columns are computed."""
    node = Crafted(tmp_path, 2)
    for state in node.states:
        state.connection.execute("ALTER TABLE orders ADD COLUMN double INTEGER AS (number * 2)")
    for partition in range(2):
        for number in range(6):
            shop = home(2, partition, number)
            node.add(partition, "shops", shop=shop)
            node.add(partition, "orders", shop=shop, number=number)
    before = node.states[0].schema()
    found = made(node, 5)
    assert sorted(row[2] for rows in found for row in rows["orders"]) == sorted(2 * n for n in range(6) for _ in range(2))
    for partition in range(5):
        state = PartitionState.open(state_path(node.directory, partition), partition=partition)
        assert state.schema() == before
        assert state.connection.execute("PRAGMA integrity_check").get == "ok"
        state.close()


def test_new_streams_begin_behind_every_old_one(tmp_path: Path) -> None:
    """One place for all: behind the highest index, at the highest transaction; the new slot map is a new entry."""
    node = Crafted(tmp_path, 2)
    groups = node.finish()
    made(node, 3, groups=groups)
    streams = [groups.state(partition) for partition in range(3)]
    assert {(s.last_index, s.commit, s.last_txn, s.last_term) for s in streams} == {(INDEX + 2, INDEX + 2, TXN + 1, TERM)}
    assert CHECKSUM not in {s.last_checksum for s in streams}
    for partition, stream in enumerate(streams):
        at = read_position(state_path(node.directory, partition), partition)
        assert at == Position(stream.last_index, stream.last_term, stream.last_checksum, stream.last_txn)
        assert Trust(FILES, node.directory).doubt(partition) == ""
    cluster = groups.state(CLUSTER_GROUP)
    assert cluster.configuration is not None
    assert (cluster.last_index, cluster.configuration["partitions"]) == (3, 3)
    assert cluster.configuration["slots"] == SlotMap(3).ranges()


def test_a_row_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    """Calls would find it in one shape and not in the other; the message names table, value and both partitions."""
    node = Crafted(tmp_path, 2)
    node.add(0, "tickets", id=1, shop=home(2, 1))
    told = refusal(node, 1)
    assert f"table tickets: a row with shop = {home(2, 1)!r} is in partition 0" in told
    assert "go to partition 1" in told


def test_rows_that_cannot_stand_together_are_refused(tmp_path: Path) -> None:
    """A key, or a unique index, without the partition column is unique in a partition only."""
    node = Crafted(tmp_path / "key", 2)
    for partition in range(2):
        node.add(partition, "tickets", id=1, shop=home(2, partition))
    assert "table tickets: rows of several old partitions conflict in partition 0" in refusal(node, 1)
    node = Crafted(tmp_path / "index", 2)
    for partition in range(2):
        node.add(partition, "serials", shop=home(2, partition), serial=1)
    assert "serial_once" in refusal(node, 1)


def test_rows_without_a_place_are_refused(tmp_path: Path) -> None:
    """A table that no catalog version names, and a row whose reference would point at another partition."""
    node = Crafted(tmp_path / "table", 1)
    node.states[0].connection.execute("CREATE TABLE old_news (id INTEGER PRIMARY KEY) STRICT")
    assert "table old_news is declared in no catalog version" in refusal(node, 2)
    node = Crafted(tmp_path / "reference", 1)
    node.states[0].connection.pragma("foreign_keys", 0)
    node.add(0, "orders", shop="gone", number=1)
    assert "a row of table orders refers to one of table shops" in refusal(node, 2)


def test_copies_of_a_replicated_table_that_differ_are_refused(tmp_path: Path) -> None:
    """Whichever copy were taken, some calls would find other rows than before."""
    for name, rows in {"more": ["a", "b"], "less": [], "other": ["b"]}.items():
        node = Crafted(tmp_path / name, 3)
        for partition in range(3):
            for row in rows if partition == 1 else ["a"]:
                node.add(partition, "places", name=row)
        assert "table places is replicated, but partition 1 holds different rows from partition 0" in refusal(node, 2)


def test_a_table_that_calls_cannot_be_routed_to_is_refused() -> None:
    """An integer column and parameters of text never have the same slot."""
    app = Database("mixed")
    app.table("t", Column("id", Integer, primary_key=True), partition_by="id")

    @app.procedure(partition_by="id")
    def add(tx: Transaction, id: str) -> None:  # noqa: A002 - a column's name
        """Nothing."""

    with pytest.raises(StateRefused, match="table t is partitioned by id, which holds values of kind integer"):
        check_kinds(app)
    for right in (bank.db, voter.db, tpcc.db, shapes.db):
        check_kinds(right)


def test_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    """What SQLite says becomes the error that every other step of a recovery has for it."""
    node = Crafted(tmp_path, 1)
    for n in range(3000):
        node.add(0, "shops", shop=f"shop {n} with a long name")
    groups = node.finish()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        with pytest.raises((DiskFull, WriteFailed)):
            reshape(FILES, node.directory, groups, partitions=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_is_impossible_is_known_before_anything_is_made(tmp_path: Path) -> None:
    """No partitions, too many for a transaction id, too many for the log's segments, no application."""
    groups = Crafted(tmp_path, 1).finish()
    instance = Instance(Identity.fresh(), segment_bytes=1 << 20, segments=8, log_reserve_bytes=4096)
    for partitions in (0, PARTITIONS_MAX + 1):
        with pytest.raises(ReshapeRefused):
            check_shape(groups, partitions, instance)
    with pytest.raises(ReshapeRefused, match="segment_bytes 1048576 is too little for 600 partitions"):
        check_shape(groups, 600, instance)
    assert check_shape(groups, 64, instance).log_reserve_bytes > 4096
    groups.state(CLUSTER_GROUP).catalogs.clear()
    with pytest.raises(ReshapeRefused, match="no application"):
        check_shape(groups, 2, instance)


def test_what_is_broken_off_before_the_old_states_go_can_be_done_again(tmp_path: Path) -> None:
    """Until then neither the old states nor the groups are touched; a half-made new state is thrown away."""
    node = Crafted(tmp_path, 2)
    for partition in range(2):
        for number in range(5):
            node.add(partition, "shops", shop=home(2, partition, number))
    groups = node.finish()
    before = [tables(tmp_path, p, shapes.db) for p in range(2)]

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reshape(FILES, node.directory, groups, partitions=3, replacing=stop)
    assert [tables(tmp_path, p, shapes.db) for p in range(2)] == before
    assert groups.state(0).last_index == INDEX
    made(node, 3, groups=groups)
    assert whole(tmp_path, 3, shapes.db)["shops"] == sorted(row for of in before for row in of["shops"])
    names = [path.name for path in (tmp_path / "state").iterdir() if not path.name.endswith(("-wal", "-shm"))]
    assert sorted(names) == ["p0000.sqlite", "p0001.sqlite", "p0002.sqlite", "trust.json"]


def test_progress_ends_with_every_row(tmp_path: Path) -> None:
    """It counts what is written: rows of partitioned tables once, of replicated ones once a partition."""
    node = Crafted(tmp_path, 1)
    for n in range(50):
        node.add(0, "shops", shop=f"shop {n}")
    node.add(0, "places", name="here")
    seen: list[WorkPace] = []
    made(node, 4, progress=seen.append)
    assert (seen[-1].done, seen[-1].total, seen[-1].percent, seen[-1].left_s) == (54, 54, 100.0, 0.0)
