"""The engine's replay of a batch: whatever passed live passes again."""

from __future__ import annotations

import decimal
import hashlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Column, Integer, Text, update

from cmdlog.wal.format.batch import NO_KEY, decode_batch, encode_batch
from cmdlog.wal.format.record import BadRecord, Record, RecordKind, decode_record, encode_json
from cmdlog.wal.skips import VOID
from procedures import Database, Transaction
from procedures.code.bundle import Bundle
from procedures.errors import MigrationDiverged
from procedures.execution.executor import Applied, Status
from procedures.execution.outcome_bodies import SKIPPED
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.idempotency.session_calls import NumberedNames, sent_name
from procedures.storage.state import PartitionState
from procedures.wire.sent_request import SentParameters, call_text
from replay.engine import CatalogMissing, Catalogs, PartitionEngine, invocations, names_of
from replay.errors import Divergence, Poison
from replay.recover.partition_replay import stop_at_migration
from tests.procedures.migration.people import ChangingSite
from tests.procedures.sites import START_MS, Site, counters, txn_at


def recursive() -> tuple[Database, Callable[[int], None]]:
    """An application that recurses as deep as its caller says; and how it is told to set its own limit."""
    db = Database("recursive")
    wanted: list[int] = []

    def below(depth: int) -> int:
        return 0 if depth == 0 else 1 + below(depth - 1)

    @db.procedure(partition_by="depth")
    def descend(tx: Transaction, depth: int) -> int:
        if wanted:
            sys.setrecursionlimit(wanted.pop())
        return below(depth)

    return db, wanted.append


def at_depth(frames: int, run: Callable[[], Applied]) -> Applied:
    """Runs it that much deeper on the stack."""
    return run() if frames == 0 else at_depth(frames - 1, run)


def on_a_new_stack(run: Callable[[], Applied]) -> Applied:
    """Runs it on a thread of its own, as a site does."""
    found: list[Applied] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def _people(*more: Column[Any]) -> Database:
    db = Database("people")
    db.table("person", Column("id", Integer, primary_key=True), Column("name", Text), *more, partition_by="id")
    return db


def _dividing_bundle() -> Bundle:
    """Its module sets a precision while it is imported, and divides."""
    source = "import decimal\nfrom procedures import Database\ndecimal.getcontext().prec = 50\ndb = Database('d')\n"
    source += "THIRD = decimal.Decimal(1) / 3\n@db.procedure()\ndef third(tx) -> str:\n    return str(THIRD)\n"
    procedures = [{"name": "third", "parameters": []}]
    content: dict[str, Any] = {
        "target": "app:db",
        "modules": {"app": source},
        "packages": [],
        "sql": {},
        "procedures": procedures,
        "dialect": 1,
    }
    digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Bundle(**content, hash=digest)


def test_code_that_is_loaded_sets_no_context_of_its_thread() -> None:
    """Another version that is loaded there begins as it would alone."""
    catalogs = Catalogs()
    catalogs.add_bundle(3, _dividing_bundle(), partitions=1)
    with decimal.localcontext(prec=9):
        third = catalogs(3).procedures["third"].function
        assert decimal.getcontext().prec == 9
    assert third(None) == "0." + 50 * "3"


def _schema_record(change: dict[str, Any]) -> Record:
    return decode_record(encode_json(RecordKind.SCHEMA, {"txn_id": 9, **change}, partition=0, term=1, index=2))


def test_void_call_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is passed over like an entry without calls: its key is free, and a later call under it runs. One that is skipped has
    an outcome, which answers the retry."""
    site = Site(tmp_path / "state.db", counters())
    engine = PartitionEngine(site.state, Catalogs(), digest_rows=True, policy=KeyPolicy())
    engine.executor, number = site.executor, site.numbers["count"]
    records = [
        decode_record(
            encode_batch(
                partition=0, term=1, index=index, catalog=1, txn_ids=[txn_at(START_MS + index)], procedures=[number],
                params=[b'["a",1]'], keys=[bytes(range(16))],
            )
        )
        for index in (2, 3, 4)
    ]  # fmt: skip
    assert engine.apply(records[0], {2: (VOID,)}) is None
    assert site.state.position.index == 2
    skipped, retried = (engine.apply(record, {3: (0,)}) for record in records[1:])
    assert skipped is not None
    assert retried is not None
    assert (list(skipped.statuses), skipped.bodies) == (list(retried.statuses), retried.bodies) == ([Status.FAILED], [SKIPPED])
    assert site.rows("SELECT * FROM counters") == []


def test_migration_that_differs_from_its_entry_is_a_divergence(tmp_path: Path) -> None:
    """Other rows than were logged stop the partition with migration, code and digests; the state is as before the entry."""
    after, word = _people(Column("loud", Text)), ["!"]

    @after.migration("0001_loud")
    def make_loud(tx: Any, op: Any) -> None:
        op.add_column("person", Column("loud", Text))
        table = after.tables["person"].table
        tx.execute(update(table).values(loud=table.c.name + word[0]))

    site = ChangingSite(tmp_path / "live.db", _people())
    site.start()
    site.run_sql("INSERT INTO person VALUES (1, 'Ada')")
    site.state.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rehearsal = site.rehearse(after)
    assert rehearsal is not None
    site.close()
    record = _schema_record(rehearsal.change.to_json())
    catalogs = Catalogs()
    with pytest.raises(CatalogMissing, match="catalog version 2 is not in any") as missing:
        PartitionEngine(
            PartitionState.open(tmp_path / "live.db", partition=0), catalogs, digest_rows=True, policy=KeyPolicy()
        ).apply(record)
    catalogs.add_live(2, after)
    state = PartitionState.open(tmp_path / "live.db", partition=0)
    engine = PartitionEngine(state, catalogs, digest_rows=True, policy=KeyPolicy())
    before = state.schema()
    word[0] = "?"
    with pytest.raises(MigrationDiverged, match=r"0001_loud.*it changed other rows") as diverged:
        engine.apply(record)
    assert (state.schema(), state.position.index, state.migrations_done()) == (before, 1, [])
    stopped = stop_at_migration(record, diverged.value, {2: "abcdef0123456789"}).error
    assert isinstance(stopped, Divergence)
    assert (stopped.place.procedure, stopped.place.txn_id) == ("migration 0001_loud", rehearsal.change.at)
    assert "migration 0001_loud (of catalog version 2, code abcdef012345)" in str(stopped)
    assert isinstance(stop_at_migration(record, missing.value, {}).error, Poison)
    word[0] = "!"
    engine.apply(record)
    assert state.connection.execute("SELECT loud FROM person").fetchall() == [("Ada!",)]
    engine.close()


def test_schema_record_that_says_nothing_sensible_is_named(tmp_path: Path) -> None:
    """With its place, as any record."""
    state = PartitionState.open(tmp_path / "s.db", partition=0)
    engine = PartitionEngine(state, Catalogs(), digest_rows=True, policy=KeyPolicy())
    with pytest.raises(BadRecord, match="SCHEMA of partition 0 at index 2"):
        engine.apply(_schema_record({"statements": [], "migrations": [{"name": "x"}]}))
    engine.close()


ONE, TWO, KEY = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16


@pytest.mark.parametrize(
    ("keys", "in_columns"),
    [
        ([sent_name(ONE, 7, 3), sent_name(ONE, 8, 3), sent_name(ONE, 9, 8)], True),
        ([sent_name(ONE, 9, 3), sent_name(TWO, 1, 0), sent_name(ONE, 7, 3)], True),
        ([sent_name(ONE, 9, 3), NO_KEY, sent_name(TWO, 1, 0)], False),
        ([sent_name(ONE, 9, 3), KEY, sent_name(TWO, 1, 0)], False),
        ([KEY, NO_KEY, NO_KEY], False),
        (None, False),
    ],
    ids=["one session", "sessions", "a call without a name", "a key beside", "a key", "no names"],
)
def test_names_of_a_batch_are_those_that_its_record_holds(keys: list[bytes] | None, in_columns: bool) -> None:
    """In columns where every call has a number in a session, else one by one."""
    record = encode_batch(
        partition=0,
        term=1,
        index=2,
        catalog=1,
        txn_ids=range(1024, 4096, 1024),
        procedures=[0] * 3,
        params=[b"[]"] * 3,
        keys=keys,
    )
    batch = decode_batch(decode_record(record))
    names = names_of(batch)
    assert (None if names is None else list(names)) == batch.key_list()
    assert isinstance(names, NumberedNames) is in_columns


def test_calls_bear_the_hashes_of_what_their_callers_sent() -> None:
    """As they were logged, also where a batch is cut: by them a retry is known after a recovery."""
    sent = SentParameters("bump", ["id", "amount"], {"id": 1}, [1, 1])
    batch = decode_batch(
        decode_record(
            encode_batch(
                partition=0, term=1, index=1, catalog=1, txn_ids=[txn_at(0), txn_at(1)], procedures=[0, 0],
                params=[call_text(sent), b"[2,1]"], keys=[b"a" * 16, b"b" * 16],
            )
        )
    )  # fmt: skip
    assert [list(invocations(batch, (), count).sent) for count in (-1, 1)] == [[sent.request(), 0], [sent.request()]]
