"""Keys of another partition are refused where a statement looks for them, and nothing else is."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    String,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    text,
    types,
    update,
    values,
)

from cmdlog.wal.files import RealFiles
from procedures import EACH, Database, Transaction
from procedures.declaration.row_placement import owner_reader
from procedures.statements import pinned_keys
from procedures.statements.pinned_keys import KeyJudge, keyed_tables
from tests.procedures.native.both_ways import in_python
from tests.procedures.sites import Site
from tests.procedures.statements.pinned_statements import Everything, check_seed

SEEDS = int(os.environ.get("SEEDS") or "10000")
FIRST = int(os.environ.get("FIRST", "0"))
SLICE = 60
FILES = RealFiles()

Body = Callable[[Transaction], Any]


class Shelves:
    """One partition of two, and any function as a procedure on it."""

    def __init__(self, folder: Path, kind: Any = Integer, partitions: int | None = 2) -> None:
        self.db = Database("shelves")
        self.shelf = self.db.table("shelf", Column("key", kind, primary_key=True), Column("n", Integer), partition_by="key")
        self.body: Body = lambda tx: None
        for name, options in (
            ("one", {"partition_by": "to"}),
            ("look", {"partition_by": "to", "read_only": True}),
            ("each", {"partition_by": EACH}),
            ("look_all", {"partition_by": None, "read_only": True}),
        ):
            self._declare(name, options)
        self.site = Site(folder / "p1", self.db, partition=1, partitions=partitions)
        self.owner = owner_reader(self.db.tables["shelf"], 2)

    def _declare(self, name: str, options: dict[str, Any]) -> None:
        def run(tx: Transaction, to: int) -> Any:
            return self.body(tx)

        def run_on_all(tx: Transaction) -> Any:
            return self.body(tx)

        self.db.procedure(name=name, **options)(run if options["partition_by"] == "to" else run_on_all)

    def numbers(self, *, here: bool) -> list[int]:
        return [n for n in range(100) if (self.owner(n) == 1) is here]

    def run(self, body: Body, name: str = "one") -> tuple[int, Any]:
        self.body = body
        params = {} if name in ("each", "look_all") else {"to": 1}
        if not self.db.procedures[name].read_only:
            return self.site.call(name, **params)
        number = self.site.numbers[name]
        _, [(status, answer)] = self.site.executor.read([(number, self.db.procedures[name].bind(params))], catalog=1)
        return status, answer.decode()


@pytest.fixture(params=["native", "python"])
def shelves(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelves]:
    """With the steps in C, and without them."""
    with in_python() if request.param == "python" else contextlib.nullcontext():
        made = Shelves(tmp_path)
        yield made
        made.site.close()


def found(shelf: Any) -> Any:
    """Of a key that is given when it runs."""
    return select(shelf.c.n).where(shelf.c.key == bindparam("k", type_=Integer))


def changed(shelf: Any) -> Any:
    """As `found`."""
    return update(shelf).where(shelf.c.key == bindparam("k", type_=Integer))


def listed(key: int) -> Any:
    """A CTE of VALUES."""
    return values(column("wanted", Integer), name="listed").data([(key,)]).cte("listed")


SEEN = text("SELECT n FROM shelf WHERE key = :k")
WAYS: dict[str, Callable[[Transaction, Any, int], Any]] = {
    "prepared": lambda tx, shelf, key: tx.scalar(found(shelf), k=key),
    "mapping": lambda tx, shelf, key: tx.execute(found(shelf), {"k": key}).all(),
    "list": lambda tx, shelf, key: tx.execute(changed(shelf).values(n=shelf.c.n + bindparam("d")), [{"k": key, "d": 1}]).rowcount,
    "built": lambda tx, shelf, key: tx.scalars(select(shelf.c.n).where(shelf.c.key == key)),
    "two names": lambda tx, shelf, key: tx.execute(changed(shelf).values(n=bindparam("d")), d=1, k=key).rowcount,
    "set by name": lambda tx, shelf, key: tx.execute(changed(shelf), k=key, n=1).rowcount,
    "returning": lambda tx, shelf, key: tx.execute(changed(shelf).values(n=5).returning(shelf.c.n), k=key).all(),
    "in": lambda tx, shelf, key: tx.execute(shelf.delete().where(shelf.c.key.in_([key]))).rowcount,
    "of a query": lambda tx, shelf, key: tx.scalars(select(shelf.c.n).where(shelf.c.key.in_(select(literal(key))))),
    "of VALUES": lambda tx, shelf, key: tx.execute(
        shelf.update().where(shelf.c.key == listed(key).c.wanted).values(n=1)).rowcount,
    "cast": lambda tx, shelf, key: tx.scalars(select(shelf.c.n).where(shelf.c.key == cast(key, Integer))),
    "filtered": lambda tx, shelf, key: tx.scalar(select(func.count().filter(shelf.c.key == key)).select_from(shelf)),
    "text": lambda tx, shelf, key: tx.execute(SEEN, k=key).all(),
    "digits": lambda tx, shelf, key: tx.execute(SEEN, k=str(key)).all(),
    "whole float": lambda tx, shelf, key: tx.execute(SEEN, k=float(key)).all(),
    "constant": lambda tx, shelf, key: tx.execute(text(f"DELETE FROM shelf WHERE key = {key}")).rowcount,  # noqa: S608 - a number
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_key_of_another_partition_is_refused(way: str, shelves: Shelves) -> None:
    """However the statement gets it, every time, even if the call catches the error; a key of here never is."""
    run, shelf = WAYS[way], shelves.shelf
    here, there = shelves.numbers(here=True), shelves.numbers(here=False)
    for key in (here[0], there[0], there[0], here[1], there[1], here[0]):
        for body in (lambda tx, key=key: run(tx, shelf, key) and None, lambda tx, key=key: swallow(lambda: run(tx, shelf, key))):
            status, answer = shelves.run(body)
            assert (status == 0) is (key in here), answer
            if status:
                assert answer["type"] == "RowRefused"
                found = (
                    "table shelf: a statement looks for a key that belongs to partition 0, and this call runs on partition 1, "
                )
                assert found in answer["message"]


def scalars_of(statement: Any, tx: Transaction, **params: Any) -> list[Any]:
    """What it finds."""
    return [*tx.scalars(statement, **params)]


def swallow(run: Callable[[], Any]) -> None:
    """A procedure that catches everything."""
    with contextlib.suppress(Exception):
        run()


def test_what_runs_on_all_partitions_may_look_for_any_key(shelves: Shelves) -> None:
    """Each row is seen where it lives; a call that reads one partition is judged as one that writes."""
    key = shelves.numbers(here=False)[0]

    def looks(tx: Transaction) -> Any:
        return tx.scalar(found(shelves.shelf), k=key)

    assert [shelves.run(looks, name)[0] for name in ("one", "look", "each", "look_all")] == [2, 2, 0, 0]
    status, answer = shelves.run(lambda tx: swallow(lambda: looks(tx)), "look")
    assert (status, "looks for a key" in answer) == (2, True)
    assert shelves.run(lambda tx: 1, "look")[0] == 0


def test_a_list_with_keys_of_other_partitions_is_refused(shelves: Shelves) -> None:
    """Its result would lack them without a word; what another condition leaves of it may all be here."""
    shelf = shelves.shelf
    (one, two, *_), (other, *_) = shelves.numbers(here=True), shelves.numbers(here=False)
    several: Any = bindparam("keys", expanding=True)
    listed = select(shelf.c.n).where(shelf.c.key.in_(several))
    assert shelves.run(lambda tx: tx.scalars(listed, keys=[one, two]))[0] == 0
    assert shelves.run(lambda tx: tx.scalars(listed, keys=[]))[0] == 0
    for keys in ([one, other], [other], [two, one, other]):
        assert shelves.run(partial(scalars_of, listed, keys=keys))[0] == 2
    narrowed = listed.where(shelf.c.key == bindparam("k", type_=Integer))
    assert shelves.run(lambda tx: tx.scalars(narrowed, keys=[one, other], k=one))[0] == 0
    assert shelves.run(lambda tx: tx.scalars(narrowed, keys=[one, other], k=other))[0] == 2
    assert shelves.run(lambda tx: tx.scalars(narrowed.where(shelf.c.key == one), keys=[other], k=other))[0] == 0


def test_a_value_that_no_row_can_have_is_looked_for_in_vain(shelves: Shelves) -> None:
    """NULL, a fraction and letters have no partition, so the statement says what it would say anywhere."""
    for value in (None, 0.5, "x", b"x"):
        assert shelves.run(partial(scalars_of, SEEN, k=value)) == (0, [])


KINDS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "String": (String(), lambda n: f"k{n}"),
    "Date": (types.Date(), lambda n: date(2026, 1, 1) + timedelta(n)),
    "Uuid": (types.Uuid(), lambda n: UUID(int=n)),
    "LargeBinary": (LargeBinary(), lambda n: bytes([n])),
    "Enum": (types.Enum(*(f"e{n}" for n in range(100))), lambda n: f"e{n}"),
    "decorated": (type("Upper", (types.TypeDecorator,), {"impl": String, "cache_ok": True, "process_bind_param":
        lambda self, value, dialect: value.upper(), "process_result_value": lambda self, value, dialect: value.lower()})(),
        lambda n: f"k{n}"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_type_are_found_where_their_rows_may_be_written(kind: str, tmp_path: Path) -> None:
    """What an INSERT accepts, a WHERE does, and no other; in the stored form of the type."""
    type_, make = KINDS[kind]
    shelves = Shelves(tmp_path, type_)
    agreed: Counter[int] = Counter()
    for number in range(30):
        key = make(number)
        added = insert(shelves.shelf).values(key=key, n=1).returning(shelves.shelf.c.n)
        written = shelves.run(partial(scalars_of, added))[0]
        column = shelves.shelf.c.key
        for condition in (column == key, column.in_([key])):
            statement = select(shelves.shelf.c.n).where(condition)
            assert shelves.run(partial(scalars_of, statement))[0] == written, key
        agreed[written] += 1
    assert set(agreed) == {0, 2}
    shelves.site.close()


@pytest.mark.parametrize("partitions", [None, 1])
def test_one_partition_has_all_keys(partitions: int | None, tmp_path: Path) -> None:
    """And a log that does not say how many there are is not judged."""
    shelves = Shelves(tmp_path, partitions=partitions)
    assert shelves.run(lambda tx: [tx.execute(SEEN, k=key).all() for key in range(20)])[0] == 0
    shelves.site.close()


def test_the_memory_of_keys_is_limited(shelves: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it they are hashed again."""
    monkeypatch.setattr(pinned_keys, "KNOWN_MAX", 2)
    assert shelves.run(lambda tx: [tx.execute(SEEN, k=key).all() for key in shelves.numbers(here=True)])[0] == 0
    judge = KeyJudge(shelves.db, [], partition=1, partitions=2)
    (pin,) = judge.placed_pins("SELECT 1 FROM shelf WHERE key = :k", ["k"])
    assert all(pin.keys.has(key) for key in shelves.numbers(here=True))
    assert len(pin.keys.here) <= 2


def test_declared_tables_are_known_by_their_keys() -> None:
    """A single INTEGER key has the names of the rowid as well."""
    db = Database("known")
    db.table("a", Column("id", Integer, primary_key=True), Column("n", Integer), partition_by="id")
    db.table("b", Column("id", String, primary_key=True), replicated=True)
    assert [(table.name, table.key, table.numbered) for table in keyed_tables(db.tables)] == [
        ("a", "id", True),
        ("b", None, False),
    ]


TWO_ACCOUNTS = """
from sqlalchemy import Column, Integer, bindparam, update
from procedures import Database

db = Database("moves")
account = db.table("account", Column("id", Integer, primary_key=True), Column("cents", Integer), partition_by="id")
OPEN = account.insert()
ADD = update(account).where(account.c.id == bindparam("who")).values(cents=account.c.cents + bindparam("more"))


@db.procedure(partition_by="id")
def open_account(tx, id: int) -> None:
    tx.execute(OPEN, id=id, cents=100)


@db.procedure(partition_by="id")
def give(tx, id: int, to: int) -> list[int]:
    return [tx.execute(ADD, who=id, more=-1).rowcount, tx.execute(ADD, who=to, more=1).rowcount]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """Rows of every kind."""
    made = Everything(tmp_path_factory.mktemp("everything"))
    yield made
    made.close()


@pytest.mark.slow
def test_random_statements_are_refused_for_keys_that_they_name(world: Everything) -> None:
    """Those that pin a key of another partition, and no other one; what runs finds what all rows would give."""
    ways = Counter(check_seed(seed, world) for seed in range(SLICE))
    assert all(ways[way] for way in ("refused", "ran", "open")), ways


@pytest.mark.torture
def test_many_random_statements_are_refused_for_keys_that_they_name(world: Everything) -> None:
    """The same of SEEDS statements, from seed FIRST on; a failure names its seed."""
    for seed in range(FIRST, FIRST + SEEDS):
        check_seed(seed, world)
