"""An application whose tables have every form that a row's place depends on, and states of it made by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import Column, DateTime, ForeignKey, Index, Integer, LargeBinary, String, bindparam, insert

from cmdlog.wal.files import RealFiles
from cmdlog.wal.group_state import GroupStates, LoggedCatalog, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database, Transaction
from procedures.code.bundle import capture_bundle
from procedures.declaration.hash_slots import partition_by_slot, slot_of, slot_ranges
from procedures.idempotency.key_table import KeyTable, stored_keys
from procedures.idempotency.known_calls import KnownCalls
from procedures.idempotency.known_outcome import Fresh, KeyPolicy, split_keys
from procedures.idempotency.packed_outcomes import NumberedCalls, unpack_outcome_at
from procedures.idempotency.session_row import stored_outcome, stored_rows
from procedures.storage.state import PartitionState, Position
from replay.errors import ReshapeRefused
from replay.repartition.repartition import reshape
from replay.state.trust import STATE_FOLDER, state_path

db = Database("shapes")
places = db.table("places", Column("name", String, primary_key=True), replicated=True)
times = db.table("times", Column("at", DateTime, primary_key=True), Column("n", Integer, nullable=False), partition_by="at")
blobs = db.table("blobs", Column("data", LargeBinary, primary_key=True), partition_by="data")
shops = db.table("shops", Column("shop", String, primary_key=True), partition_by="shop")
orders = db.table(
    "orders",
    Column("shop", String, ForeignKey("shops.shop"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Index("orders_by_number", "number"),
    partition_by="shop",
)
tickets = db.table(
    "tickets", Column("id", Integer, primary_key=True), Column("shop", String, nullable=False), partition_by="shop"
)
serials = db.table(
    "serials",
    Column("shop", String, primary_key=True),
    Column("serial", Integer, nullable=False),
    Index("serial_once", "serial", unique=True),
    partition_by="shop",
)

ADD_TIME, ADD_BLOB, ADD_SHOP, ADD_TICKET = insert(times), insert(blobs), insert(shops), insert(tickets)
ADD_ORDER = insert(orders).values(shop=bindparam("shop_"), number=bindparam("number_"))


@db.procedure(partition_by="at")
def add_time(tx: Transaction, at: datetime, n: int) -> None:
    """A time as a caller gives it."""
    tx.execute(ADD_TIME, at=at, n=n)


@db.procedure(partition_by="data")
def add_blob(tx: Transaction, data: bytes) -> None:
    """Bytes as a caller gives them."""
    tx.execute(ADD_BLOB, data=data)


@db.procedure(partition_by="shop")
def add_shop(tx: Transaction, shop: str, numbers: list[int]) -> None:
    """A shop with its orders."""
    tx.execute(ADD_SHOP, shop=shop)
    for number in numbers:
        tx.execute(ADD_ORDER, shop_=shop, number_=number)


@db.procedure(partition_by="caller")
def add_ticket(tx: Transaction, caller: str, id: int, shop: str) -> None:  # noqa: A002 - a column's name
    """Writes a row of whatever shop on the caller's partition."""
    tx.execute(ADD_TICKET, id=id, shop=shop)


FILES: Final = RealFiles()
SEED: Final = 1  # of the request hash of every call of a session; none has parameters
INDEX, TERM, CHECKSUM, TXN = 9, 2, 77, 1_700_000_000_000 << 21


class Crafted:
    """A node in the making with states that nobody replayed; close it before it is reshaped."""

    def __init__(self, directory: Path, partitions: int, *, policy: KeyPolicy | None = None) -> None:
        self.directory, self.partitions, self.policy = str(directory), partitions, policy or KeyPolicy()
        os.makedirs(os.path.join(self.directory, STATE_FOLDER))
        self.states = [PartitionState.open(state_path(self.directory, p), partition=p) for p in range(partitions)]
        self._index = [0] * partitions
        for state in self.states:
            for statement in db.schema_statements():
                state.connection.execute(statement)

    def add(self, partition: int, table: str, **row: Any) -> None:
        """Puts a row in, wherever it belongs."""
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - names of ours
        self.states[partition].connection.execute(sql, tuple(row.values()))

    def answered(self, partition: int, outcomes: Mapping[bytes, bytes], *, shared: bool = False, clock: int = 0) -> None:
        """A batch of calls with these keys and results; later calls see them expire as the policy says."""
        self._index[partition] += 1
        state = self.states[partition]
        fresh = Fresh(list(outcomes), [1] * len(outcomes), [0] * len(outcomes), [TXN] * len(outcomes), outcomes.values())
        table = KeyTable(state, self.policy)
        with state.connection:
            kind: Any = "everywhere" if shared else "single"
            table.store(self._index[partition], fresh, clock=clock, txn_ms=(TXN >> 21) + clock, kind=kind, keyed=True)
            table.accept()

    def called(
        self, partition: int, calls: Mapping[bytes, bytes], floors: Mapping[bytes, int], *, shared: bool = False, clock: int = 0
    ) -> None:
        """A batch of calls of sessions with these names and results, which brings these floors."""
        self._index[partition] += 1
        state = self.states[partition]
        kind: Any = "everywhere" if shared else "single"
        known, txn_ms = KnownCalls(state, self.policy), (TXN >> 21) + clock
        known.begin_batch(floors, txn_ms=txn_ms, kind=kind)
        assert known.runs_plainly(list(calls), kind=kind) or not calls
        fresh = Fresh(list(calls), [1] * len(calls), [0] * len(calls), [TXN] * len(calls), calls.values())
        kept = (
            NumberedCalls(
                list(calls),
                [SEED] * len(calls),
                [[]] * len(calls),
                hashed=False,
                ended=(fresh.statuses, fresh.txn_ids, fresh.bodies),
            )
            if calls
            else Fresh()
        )
        with state.connection:
            known.store(self._index[partition], kept, clock=clock, txn_ms=txn_ms, kind=kind)
            known.accept()

    def skip_entries(self, partition: int, entries: int) -> None:
        """So many that name no call."""
        self._index[partition] += entries

    def finish(self, clocks: Sequence[int] = ()) -> GroupStates:
        """Closes the states at one place each; returns the groups that say so."""
        groups = GroupStates()
        for partition, state in enumerate(self.states):
            state.save(Position(INDEX + partition, TERM, CHECKSUM, TXN + partition), clocks[partition] if clocks else 0)
            state.close()
            group = groups.state(partition)
            group.last_index, group.last_term, group.last_checksum = INDEX + partition, TERM, CHECKSUM
            group.term, group.vote, group.commit, group.last_txn = TERM, 1, INDEX + partition, TXN + partition
            group.configurations = [Stated(1, 1, {"voters": [1], "learners": [], "epoch": 1})]
        bundle = capture_bundle(db, None)
        cluster = groups.state(CLUSTER_GROUP)
        cluster.term, cluster.last_index, cluster.commit = TERM, 2, 2
        cluster.catalogs = {1: LoggedCatalog(2, {"version": 1, "bundle": bundle.to_bytes().decode(), "hash": bundle.hash}, 2)}
        shape = {"voters": [1], "partitions": self.partitions, "slots": slot_ranges(self.partitions)}
        cluster.configurations = [Stated(1, 1, {**shape, "key_policy": asdict(self.policy)})]
        return groups


def tables(directory: Path, partition: int, app: Database) -> dict[str, list[Any]]:
    """Rows of every table of a partition, in key order."""
    connection = apsw.Connection(state_path(str(directory), partition), flags=apsw.SQLITE_OPEN_READWRITE)
    rows = {name: sorted(connection.execute(f'SELECT * FROM "{name}"')) for name in app.tables}  # noqa: S608
    connection.close()
    return rows


def home(partitions: int, partition: int, number: int = 0) -> str:
    """The name of a shop that lives on the partition; another one for every number."""
    names = (f"shop {n}" for n in range(100_000))
    return next(islice((name for name in names if partition_by_slot(partitions)[slot_of(name)] == partition), number, None))


def made(node: Crafted, partitions: int, **given: Any) -> list[dict[str, list[Any]]]:
    """Rows of every new partition."""
    results = reshape(FILES, node.directory, given.pop("groups", None) or node.finish(), partitions=partitions, **given)
    assert [result.partition for result in results] == list(range(partitions))
    return [tables(Path(node.directory), p, db) for p in range(partitions)]


def refusal(node: Crafted, partitions: int, **given: Any) -> str:
    """What is said when the node is not made."""
    with pytest.raises(ReshapeRefused) as caught:
        made(node, partitions, **given)
    return str(caught.value)


def sessions_of(directory: str, partition: int, *, shared: bool = False) -> dict[bytes, tuple[int, dict[int, bytes]]]:
    """Session -> its floor, and number -> stored body."""
    connection = apsw.Connection(state_path(directory, partition))
    found: dict[bytes, tuple[int, dict[int, bytes]]] = {}
    for row in stored_rows(connection):
        for session, floor in zip(row.sessions, row.floors, strict=True) if row.shared is shared else ():
            found[session] = (floor, found.get(session, (0, {}))[1])
        for ordinal, number in zip(row.ordinals, row.numbers, strict=True) if row.shared is shared else ():
            session, bodies = row.sessions[ordinal], found[row.sessions[ordinal]][1]
            assert number not in bodies
            bodies[number] = stored_outcome(connection, row.idx, session, number).body
    connection.close()
    return found


def known(directory: str, partition: int, *, shared: bool = False) -> dict[bytes, bytes | None]:
    """Every key of a partition with its stored body; None for one whose outcome is dropped."""
    connection = apsw.Connection(state_path(directory, partition))
    found: dict[bytes, bytes | None] = {}
    for row in stored_keys(connection):
        if row.shared is not shared:
            continue
        packed = connection.execute("SELECT outcomes FROM _cmdlog_keys WHERE idx = ?", (row.idx,)).get
        for at, key in enumerate(split_keys(row.keys)):
            assert key not in found
            found[key] = unpack_outcome_at(packed, at).body if packed is not None else None
    connection.close()
    return found
