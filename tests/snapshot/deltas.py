"""A partition with tables of every kind, random work on it, and its snapshots: whole images and deltas."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Column, Index, Integer, LargeBinary, String, Table, bindparam, delete, insert, update
from sqlalchemy.sql.elements import ClauseElement

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from procedures import Database, IntegrityError, Transaction
from procedures.idempotency.known_outcome import KeyPolicy, key_fingerprint
from procedures.idempotency.session_calls import NAME_BYTES, call_names, split_names
from procedures.migration.stated_change import StatedChange
from snapshot.capture.capture import CapturePacing, Wish
from snapshot.capture.delta import DeltaCapture
from snapshot.capture.image import ImageCapture
from snapshot.capture.seal import seal
from snapshot.catalog import Snapshot, free_path, list_snapshots, temporary_path
from snapshot.manifest import DATA_NAME
from snapshot.retention import next_wish
from snapshot.table_digest import TableDigest, open_image, table_digests
from tests.procedures.sites import START_MS, Call, Site, uuid7

US = Identity(b"c" * 16, 1, b"i" * 8)
FILES = RealFiles()
KEYS = 8  # of each table: few, so that everything meets everything
SHORT_LIVED = KeyPolicy(window_ms=6, forget_ms=12, session_idle_ms=6)
UNSEEN = 12  # numbers of a session that its client has not seen the outcomes of

SUMS = """CREATE TABLE sums (twice INTEGER GENERATED ALWAYS AS (u * 2) STORED, id INTEGER NOT NULL PRIMARY KEY, value TEXT,
    u INTEGER) STRICT"""  # applications cannot declare this one, but a row digest or a delta must not mix its columns up

Step = tuple[str, str, int, int]  # verb, table, two numbers
Steps = list[Step]


class Wanted(Exception):
    """A call that changes its mind."""


def application() -> Database:
    """Tables with one integer as key, composite keys, blobs, keys that differ in case, generated columns and unique indexes."""
    db = Database("kinds")
    tables = {
        "items": db.table(
            "items", Column("id", Integer, primary_key=True), Column("value", String), Column("u", Integer), partition_by="id"
        ),
        "pairs": db.table(
            "pairs", Column("value", String), Column("b", Integer, primary_key=True), Column("id", Integer, primary_key=True),
            Column("u", Integer), partition_by="id",
        ),
        "blobs": db.table(
            "blobs", Column("id", LargeBinary, primary_key=True), Column("value", String), Column("u", Integer), partition_by="id"
        ),
        "folded": db.table(
            "folded", Column("id", String, primary_key=True), Column("value", String), Column("u", Integer),
            partition_by="id",
        ),
        "sums": db.table(
            "sums", Column("id", Integer, primary_key=True), Column("value", String), Column("u", Integer), partition_by="id"
        ),
        "shared": db.table(
            "shared", Column("id", Integer, primary_key=True), Column("value", String), Column("u", Integer), replicated=True
        ),
    }  # fmt: skip
    for name in ("items", "pairs", "folded"):
        Index(f"{name}_u", tables[name].c.u, unique=True)
    Index("items_value", tables["items"].c.value)
    verbs = {(verb, name): statement for name, table in tables.items() for verb, statement in _verbs(table).items()}

    @db.procedure(partition_by="key")
    def work(tx: Transaction, key: int, steps: str) -> int:
        _run(tx, verbs, orjson.loads(steps))
        return key

    @db.procedure(partition_by=None)
    def work_everywhere(tx: Transaction, steps: str) -> int:
        _run(tx, verbs, [("set" if verb == "fail" else verb, "shared", a, b) for verb, _, a, b in orjson.loads(steps)])
        return 0

    return db


def _verbs(table: Table) -> dict[str, ClauseElement]:
    columns = table.c
    row: dict[str, Any] = {"id": bindparam("k"), "value": bindparam("v"), "u": bindparam("n")}
    if "b" in columns:
        row["b"] = bindparam("b_")
    here = [columns.id == bindparam("k")] + ([columns.b == bindparam("b_")] if "b" in columns else [])
    return {
        "new": insert(table).values(**row),
        "put": insert(table).prefix_with("OR REPLACE").values(**row),
        "set": update(table).where(*here).values(value=bindparam("v"), u=bindparam("n")),
        "move": update(table).where(*here).values(id=bindparam("to")),
        "push": update(table).prefix_with("OR REPLACE").where(*here).values(id=bindparam("to")),
        "all": update(table).values(u=columns.u + 1),
        "drop": delete(table).where(*here),
        "clear": delete(table).where(columns.u > bindparam("n")),
    }


def _run(tx: Transaction, verbs: dict[tuple[str, str], ClauseElement], steps: Steps) -> None:
    for verb, table, a, b in steps:
        if verb == "fail":
            raise Wanted
        given: dict[str, Any] = {"k": _key(table, a), "to": _key(table, b), "b_": b % 3, "v": None if b == 3 else f"v{b}", "n": b}
        statement = verbs[verb, table]
        wanted = set(statement.compile().params)
        try:
            tx.execute(statement, **{name: value for name, value in given.items() if name in wanted})
        except IntegrityError:
            continue  # the statement is undone, half-way or whole; the call goes on


def _key(table: str, number: int) -> Any:
    if table == "blobs":
        return bytes([number, 0, 255 - number])
    if table == "folded":
        return ("aA"[number % 2]) + str(number // 2)
    return number


VERBS = ("new", "put", "set", "move", "push", "all", "drop", "clear", "fail")
TABLES = ("items", "pairs", "blobs", "folded", "sums")  # and `shared`, which is replicated


class Partition:
    """One partition in a folder, with the node's part of taking snapshots of it."""

    def __init__(self, folder: Path) -> None:
        os.makedirs(folder / "snapshots", exist_ok=True)
        self.folder = folder
        self.site = Site(folder / "state", application(), policy=SHORT_LIVED)
        changes = self.site.executor.gather_changes()
        assert changes is not None
        self.changes = changes
        self._batches = 0
        at = self.site.state.position
        self.site.executor.apply_schema(
            index=at.index + 1, term=1, checksum=7, txn_id=at.txn_id, change=StatedChange(("DROP TABLE sums", SUMS))
        )

    def apply(self, calls: Sequence[Steps], *, keyed: bool = False) -> None:
        """One batch."""
        self._batches += 1
        keys = [self._name(at) for at in range(len(calls))] if keyed else None
        self._apply([("work", {"key": 1, "steps": orjson.dumps(steps).decode()}) for steps in calls], keys)

    def apply_everywhere(self, steps: Steps, *, keyed: bool = False) -> None:
        """A call on all partitions, which is a batch of its own; all of its steps are on `shared`."""
        self._batches += 1
        keys = [self._name(self._batches)] if keyed else None
        params = orjson.dumps(steps).decode()
        self._apply([("work_everywhere", {"steps": params})], keys)

    def _name(self, at: int) -> bytes:
        """A key of its own, or a number in a session that is used for some batches, and begun again after others."""
        if at % 2 == 0:
            return key_fingerprint("me", f"{self._batches}-{at}")
        return call_names([(key_fingerprint("me", uuid7(START_MS + self._batches // 5 * 5, at % 4)), self._batches * 4 + at)])[0]

    def advance(self) -> None:
        """An entry without calls: keys may expire with it, too."""
        at = self.site.state.position
        self.site.executor.advance(index=at.index + 1, term=1, checksum=7)

    def _apply(self, calls: list[Call], keys: list[bytes] | None) -> None:
        numbered = [key for key in keys or () if len(key) == NAME_BYTES]
        floors = {session: max(0, number - UNSEEN) for session, number in zip(*split_names(numbered), strict=True)}
        for body in self.site.apply(*calls, keys=keys, floors=floors).bodies:
            assert body in (b"0", b"1") or orjson.loads(body)["type"] == "Wanted", body

    def digests(self) -> dict[str, TableDigest]:
        return table_digests(self.site.state.connection)

    def image(self, path: Path) -> Path:
        """A whole image, at once; what changes from here on is known."""
        capture = ImageCapture(self.site.state, str(path))
        while not capture.step():
            pass
        assert "error" not in capture.report()
        self.changes.cut(self.site.state.position, keep=self._cuts())
        return path

    def delta(self, path: Path, since: Any) -> DeltaCapture:
        """A delta since that position, one row per step; not begun to be stepped."""
        parts = self.changes.since(since)
        assert parts is not None
        self.changes.cut(self.site.state.position, keep=self._cuts())
        capture = DeltaCapture(self.site.state, self.changes, parts, str(path))
        capture.pace = CapturePacing(unit_s=1.0, units_max=1)
        return capture

    def _cuts(self) -> range:
        return range(self.site.state.position.index + 1)

    # -- the whole way ---------------------------------------------------------------------------------------------------

    def captured(self, *, whole: bool = False) -> tuple[str, dict[str, Any]]:
        """A temporary folder with an image, or a delta if there is a base, and the facts that seal it."""
        temporary = temporary_path(str(self.folder), 0)
        os.mkdir(temporary)
        wish, base = next_wish(self.listed(), os.path.join(temporary, DATA_NAME["delta"]))
        if base is None or whole:
            capture: ImageCapture | DeltaCapture = ImageCapture(self.site.state, os.path.join(temporary, DATA_NAME["full"]))
        else:
            capture = self._wished(wish)
        while not capture.step():
            pass
        report = capture.report()
        if report["kind"] == "full":
            self.changes.cut(self.site.state.position, keep=wish.keep)
        facts = {name: value for name, value in report.items() if name != "path"}
        if report["kind"] == "delta":
            assert base is not None
            assert base.manifest is not None
            facts["base"] = orjson.loads(orjson.dumps(base.manifest.as_base(base.name)))
        return temporary, {**facts, **_facts(report["index"])}

    def _wished(self, wish: Wish) -> DeltaCapture:
        assert wish.base is not None
        parts = self.changes.since(wish.base)
        assert parts is not None
        self.changes.cut(self.site.state.position, keep=wish.keep)
        return DeltaCapture(self.site.state, self.changes, parts, wish.path)

    def take(self, *, whole: bool = False) -> Path:
        """A sealed snapshot."""
        temporary, facts = self.captured(whole=whole)
        final = free_path(FILES, str(self.folder), partition=0, index=facts["index"])
        seal(FILES, temporary, final, facts)
        return Path(final)

    def listed(self) -> list[Snapshot]:
        return list_snapshots(FILES, str(self.folder), US)

    def close(self) -> None:
        self.site.close()


def _facts(index: int) -> dict[str, Any]:
    return {
        "log_block": 10 * index,
        "epoch": 1,
        "configuration": None,
        "catalogs": {},
        "environment": None,
        "key_policy": None,
        "created": "2026-01-01T00:00:00Z",
        "cluster_id": US.cluster_id.hex(),
        "node_id": 1,
        "incarnation": US.incarnation.hex(),
    }


def digests_of(path: Path | str) -> dict[str, TableDigest]:
    """Of a closed file."""
    connection = open_image(path)
    try:
        return table_digests(connection)
    finally:
        connection.close()


def random_steps(chance: random.Random, count: int) -> Steps:
    """Work without a plan."""
    return [(chance.choice(VERBS), chance.choice(TABLES), chance.randrange(KEYS), chance.randrange(KEYS)) for _ in range(count)]


def random_batches(seed: int) -> Iterator[tuple[list[Steps], bool]]:
    """(Calls, whether they bear keys) without end."""
    chance = random.Random(seed)
    while True:
        yield [random_steps(chance, chance.randrange(1, 5)) for _ in range(chance.randrange(1, 4))], chance.random() < 0.5
