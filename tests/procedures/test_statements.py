"""Statements: what procedures may run, how parameters go in and rows come out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Uuid,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)

from procedures import Database, StatementRefused, TextNumeric, Transaction
from procedures.execution.executor import Status
from procedures.execution.statements import check_text, compile_statement, probe
from procedures.storage.row_digest import UNREADABLE
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]


class Bench:
    """Runs any function as a procedure, with some tables at hand."""

    def __init__(self, make_site: MakeSite) -> None:
        self.db = Database("bench")
        self.rows = self.db.table(
            "rows", Column("id", Integer, primary_key=True), Column("name", String), Column("other", Integer), partition_by="id"
        )
        self.shared = self.db.table("shared", Column("id", Integer, primary_key=True), replicated=True)
        self.body: Callable[[Transaction], Any] = lambda tx: None

        def body(tx: Transaction, key: int) -> Any:
            return self.body(tx)

        self.db.procedure(name="single", partition_by="key")(body)
        self.db.procedure(name="everywhere", partition_by=None)(body)
        self.db.procedure(name="look", partition_by="key", read_only=True)(body)
        self.site = make_site(self.db)

    def run(self, body: Callable[[Transaction], Any], name: str = "single") -> tuple[int, Any]:
        """(status, body) of a call that runs `body`."""
        self.body = body
        return self.site.call(name, key=1)


@pytest.fixture
def bench(make_site: MakeSite) -> Bench:
    """A place to run statements in."""

    return Bench(make_site)


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "BEGIN",
        "ROLLBACK",
        "SAVEPOINT x",
        "RELEASE call",
        "END",
        "PRAGMA user_version = 5",
        "PRAGMA table_info(rows)",
        "ATTACH 'x' AS y",
        "DETACH main",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "CREATE TABLE x(a)",
        "DROP TABLE rows",
        "ALTER TABLE rows ADD COLUMN x",
        "EXPLAIN SELECT 1",
        "",
        ";",
        "SELECT 1; COMMIT",
        "INSERT OR ROLLBACK INTO rows(id) VALUES (1)",
        "UPDATE or /* x */ rollback rows SET id = 1",
        "/* SELECT */ COMMIT",
        "-- SELECT\nCOMMIT",
        "SELECT random()",
        "SELECT randomblob(4)",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT current_date, current_time",
        "SELECT date('now')",
        "SELECT strftime('%s', 'now')",
        "SELECT unixepoch()",
        "SELECT julianday(2)",
        "SELECT last_insert_rowid()",
        "SELECT changes()",
        "SELECT total_changes()",
        "SELECT sqlite_version()",
        "SELECT load_extension('x')",
        "SELECT sin(1)",
        "SELECT * FROM _cmdlog_meta",
        "UPDATE _cmdlog_meta SET idx = 99",
        "UPDATE _CMDLOG_meta SET idx = 99",
        'DELETE FROM "_cmdlog_keys"',
        "SELECT * FROM sqlite_master",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM pragma_table_info('rows')",
        "SELECT * FROM pragma_database_list",
        "WITH x AS (SELECT random() AS r) SELECT r FROM x",
        "INSERT INTO rows(id) SELECT random()",
        "SELECT id FROM rows WHERE id IN (SELECT idx FROM _cmdlog_meta)",
        "SELECT * FROM nowhere",
    ],
)
def test_texts_that_no_procedure_may_run(bench: Bench, sql: str) -> None:
    """Transaction control, schema, PRAGMA, the framework's tables, clock and chance are refused, and nothing remains."""
    before = bench.site.rows("SELECT * FROM sqlite_master")
    for name in ("single", "everywhere", "look"):
        if name != "look":
            status, body = bench.run(lambda tx: list(tx.execute(text(sql))), name)
            assert status == Status.FAILED, body
        else:
            bench.body = lambda tx: list(tx.execute(text(sql)))
            _, answers = bench.site.executor.read([(bench.site.numbers["look"], [1])], catalog=1)
            assert answers[0][0] == Status.FAILED
    assert bench.site.rows("SELECT * FROM sqlite_master") == before
    assert bench.run(lambda tx: 5) == (Status.OK, 5)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "values (1), (2)",
        "WITH x(a) AS (VALUES (1)) SELECT a FROM x",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT 'a;b', \"id\", ';' FROM rows",
        "SELECT 'insert or rollback'",
        "SELECT count(*), max(id), group_concat(name) FROM rows",
        "SELECT row_number() OVER (ORDER BY id) FROM rows",
        "SELECT json_extract('{\"a\": 1}', '$.a'), abs(-1), round(1.5), upper('x'), coalesce(NULL, 1)",
        "INSERT OR IGNORE INTO rows(id) VALUES (1)",
        "REPLACE INTO rows(id) VALUES (1)",
    ],
)
def test_texts_that_procedures_may_run(bench: Bench, sql: str) -> None:
    """Reading and changing rows with functions of their arguments alone is allowed."""
    status, body = bench.run(lambda tx: tx.execute(text(sql)).rowcount)
    assert status == Status.OK, body


def test_text_of_the_framework_is_out_of_reach(bench: Bench) -> None:
    """The cached statements of the framework are not what a procedure gets for the same text."""
    bench.run(lambda tx: None)
    meta = "UPDATE _cmdlog_meta SET idx = ?, term = ?, checksum = ?, txn_id = ?, clock = ?"
    index = bench.site.state.position.index
    for sql in (meta, "SELECT * FROM sqlite_master", "SELECT * FROM _cmdlog_keys"):
        with pytest.raises(StatementRefused, match="is not for procedures"):
            probe(bench.site.state.connection, bench.site.state.guard, sql)
    assert bench.run(lambda tx: tx.execute(text(meta)))[0] == Status.FAILED
    assert bench.site.rows("SELECT idx FROM _cmdlog_meta") == [(index + 1,)]


def test_tables_are_held_to_where_a_procedure_runs(bench: Bench) -> None:
    """One partition writes its own rows, all partitions write replicated rows, a read writes none."""
    rows, shared = bench.rows, bench.shared
    ok = Status.OK
    assert bench.run(lambda tx: tx.execute(insert(rows).values(id=1)).rowcount)[0] == ok
    assert bench.run(lambda tx: tx.execute(select(shared.c.id)).rowcount)[0] == ok
    assert "replicated" in bench.run(lambda tx: tx.execute(insert(shared).values(id=1)))[1]["message"]
    assert bench.run(lambda tx: tx.execute(insert(shared).values(id=1)).rowcount, "everywhere")[0] == ok
    assert "partitioned" in bench.run(lambda tx: tx.execute(select(rows.c.id)), "everywhere")[1]["message"]
    assert "partitioned" in bench.run(lambda tx: tx.execute(delete(rows)), "everywhere")[1]["message"]
    bench.body = lambda tx: tx.execute(delete(rows))
    _, answers = bench.site.executor.read([(bench.site.numbers["look"], [1])], catalog=1)
    assert b"read_only" in answers[0][1]


def test_everywhere_has_no_partition_and_the_same_chance(make_site: MakeSite) -> None:
    """A call that runs on all partitions sees the same random numbers on each, and none has a partition number."""
    db = Database("copies")

    @db.procedure(partition_by=None)
    def draw(tx: Transaction) -> list[str]:
        return [str(tx.random.random()), str(tx.uuid()), tx.now.isoformat(), str(tx.txn_id)]

    @db.procedure(partition_by=None)
    def where(tx: Transaction) -> int:
        return tx.partition

    @db.procedure(partition_by="n")
    def draw_one(tx: Transaction, n: int) -> list[str]:
        return [str(tx.random.random()), str(tx.partition)]

    sites = [make_site(db, partition=number) for number in (0, 1)]
    one, other = (site.call("draw") for site in sites)
    assert one == other
    assert all(site.call("where")[0] == Status.FAILED for site in sites)
    assert sites[0].call("draw_one", n=1)[1][0] != sites[1].call("draw_one", n=1)[1][0]
    assert sites[1].call("draw_one", n=1)[1][1] == "1"


def test_parameters_by_name_are_checked(bench: Bench) -> None:
    """A missing or unknown parameter of a statement is named."""
    add = insert(bench.rows).values(id=bindparam("number"), name=bindparam("label"))
    one = select(bench.rows.c.name).where(bench.rows.c.id == bindparam("number"))
    for wrong, message in (
        ({"number": 1}, "needs a value for label"),
        ({"number": 1, "label": "x", "more": 1}, "no parameter more"),
        ({"number": 1, "lable": "x"}, "needs a value for label"),
        ({}, "needs a value for label, number"),
    ):
        assert message in bench.run(lambda tx, wrong=wrong: tx.execute(add, **wrong))[1]["message"]  # type: ignore[misc]
    assert "needs a value" in bench.run(lambda tx: tx.execute(one))[1]["message"]
    assert bench.run(lambda tx: tx.execute(add, number=1, label="x").rowcount) == (Status.OK, 1)
    assert bench.run(lambda tx: tx.execute(one, number=1).scalar()) == (Status.OK, "x")


def test_constants_defaults_and_repeated_parameters(bench: Bench) -> None:
    """Values inside a statement, default values of parameters, and a name used twice all reach SQLite."""
    rows = bench.rows
    add = insert(rows).values(id=bindparam("number"), name="fixed", other=bindparam("other", value=7))
    twice = update(rows).where(rows.c.id == bindparam("n")).values(other=bindparam("n") + rows.c.other)
    look = select(rows.c.name, rows.c.other).where(rows.c.id == bindparam("n"), rows.c.name == "fixed").limit(5)

    def body(tx: Transaction) -> Any:
        tx.execute(add, number=3)
        tx.execute(add, number=4, other=1)
        tx.execute(twice, n=3)
        return [tuple(tx.execute(look, n=3).one()), tuple(tx.execute(look, n=4).one())]

    assert bench.run(body) == (Status.OK, [["fixed", 10], ["fixed", 1]])


def test_lists_inside_in(bench: Bench) -> None:
    """A list parameter inside IN works for every length, none included."""
    rows = bench.rows
    some = select(rows.c.id).where(rows.c.id.in_(bindparam("ids", expanding=True))).order_by(rows.c.id)
    fixed = select(rows.c.id).where(rows.c.id.in_([1, 3])).order_by(rows.c.id)

    def body(tx: Transaction) -> Any:
        for number in range(5):
            tx.execute(insert(rows).values(id=bindparam("n")), n=number)
        lists: list[list[int]] = [[], [2], [1, 4], [4, 9, 0]]
        return [tx.execute(some, ids=ids).scalars() for ids in lists] + [tx.execute(fixed).scalars()]

    assert bench.run(body) == (Status.OK, [[], [2], [1, 4], [0, 4], [1, 3]])


def test_results_offer_rows_in_all_ways(bench: Bench) -> None:
    """scalar, scalars, first, one, one_or_none, all, iteration, names of columns; and counts of changes."""
    rows = bench.rows
    everything = select(rows.c.id, rows.c.name).order_by(rows.c.id)
    none = select(rows.c.id).where(rows.c.id == literal(99))

    def body(tx: Transaction) -> Any:
        for number in (1, 2):
            tx.execute(insert(rows).values(id=bindparam("n"), name=bindparam("s")), n=number, s=f"row {number}")
        found = tx.execute(everything)
        empty = tx.execute(none)
        assert found.rowcount == 2
        assert [row.name for row in found] == [row.name for row in found.all()] == ["row 1", "row 2"]
        assert found.first().id == 1
        assert tx.execute(none).first() is None
        assert empty.one_or_none() is None
        assert empty.scalar() is None
        assert not empty
        for wrong in (found.one, found.one_or_none, empty.one, tx.execute(delete(rows)).all):
            with pytest.raises(LookupError):
                wrong()
        returned = tx.execute(insert(rows).values(id=9).returning(rows.c.id))
        return [found.scalars(), returned.scalar(), tx.execute(update(rows).values(other=1)).rowcount]

    assert bench.run(body) == (Status.OK, [[1, 2], 9, 1])


def test_result_of_one_statement_survives_the_next(bench: Bench) -> None:
    """Rows are read to the end at once: changing the table while iterating is safe."""
    rows = bench.rows

    def body(tx: Transaction) -> Any:
        for number in range(5):
            tx.execute(insert(rows).values(id=bindparam("n")), n=number)
        seen = []
        for row in tx.execute(select(rows.c.id).order_by(rows.c.id)):
            tx.execute(delete(rows).where(rows.c.id == bindparam("n")), n=row.id + 1)
            seen.append(row.id)
        return seen

    assert bench.run(body) == (Status.OK, [0, 1, 2, 3, 4])


def test_column_types_come_back_exactly(make_site: MakeSite) -> None:
    """Every column type stores its value exactly and gives it back as the same Python type."""
    db = Database("columns")
    kinds: dict[str, tuple[Any, Any]] = {
        "number": (Numeric(18, 10), Decimal("12345678.0123456789")),
        "digits": (TextNumeric(30, 10), Decimal("12345678901234567890.0123456789")),
        "real": (Float, 0.1),
        "flag": (Boolean, True),
        "moment": (DateTime, datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)),
        "day": (Date, date(2026, 1, 31)),
        "uid": (Uuid, UUID(int=77)),
        "raw": (LargeBinary, b"\x00\xff"),
        "tree": (JSON, {"b": [1, None], "a": "ü"}),
        "words": (String, "nul \x00 and \U0001f600"),
        "long": (Integer, (1 << 63) - 1),
    }
    table = db.table(
        "t",
        Column("id", Integer, primary_key=True),
        *(Column(name, kind) for name, (kind, _) in kinds.items()),
        partition_by="id",
    )
    put = insert(table).values(id=bindparam("id"), **{name: bindparam(name) for name in kinds})
    get = select(*(table.c[name] for name in kinds)).where(table.c.id == bindparam("id"))
    seen: list[Any] = []

    @db.procedure(partition_by="n")
    def run(tx: Transaction, n: int) -> None:
        tx.execute(put, id=1, **{name: value for name, (_, value) in kinds.items()})
        tx.execute(put, id=2, **dict.fromkeys(kinds))
        seen.extend([tuple(tx.execute(get, id=1).one()), tuple(tx.execute(get, id=2).one())])

    @db.procedure(partition_by="n")
    def spoil(tx: Transaction, n: int, what: str) -> None:
        wrong: dict[str, Any] = {"number": 0.5, "moment": datetime(2026, 1, 1), "day": "x", "long": "text", "words": b"x"}  # noqa: DTZ001
        values = {name: value for name, (_, value) in kinds.items()}
        tx.execute(put, id=3, **{**values, what: wrong[what]})

    site = make_site(db)
    assert site.call("run", n=1) == (Status.OK, None)
    assert seen == [tuple(value for _, value in kinds.values()), (None,) * len(kinds)]
    assert [type(value) for value in seen[0]] == [type(value) for _, value in kinds.values()]
    for what in ("number", "moment", "day", "long", "words"):
        assert site.call("spoil", n=1, what=what)[0] == Status.FAILED, what


def test_what_is_no_statement_is_refused() -> None:
    """Strings, tables, functions of SQLAlchemy's ORM and schema statements are refused with a hint."""
    db = Database("shapes")
    table = db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
    for wrong in ("select 1", None, 5, table, table.c.id, func.count()):
        with pytest.raises(StatementRefused):
            compile_statement(wrong)
    with pytest.raises(StatementRefused, match="semicolon"):
        check_text("SELECT 1; SELECT 2")


def test_statements_built_per_call_do_not_pile_up(bench: Bench) -> None:
    """A procedure that builds statements as it goes is slow, but takes bounded memory."""
    from procedures.execution import statements

    rows = bench.rows
    limit = statements.STATEMENTS_MAX
    statements.STATEMENTS_MAX = 20
    try:
        status, body = bench.run(
            lambda tx: [tx.execute(select(rows.c.id).where(rows.c.id == number)).rowcount for number in range(60)]
        )
    finally:
        statements.STATEMENTS_MAX = limit
    assert (status, sum(body)) == (Status.OK, 0)
    runs = bench.site.executor._catalogs[1]._transactions.values()
    assert all(len(tx._statements) <= 20 for tx in runs)


LAST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("INSERT INTO rows (name) VALUES (:name)", {"name": "x"}),
        ("INSERT INTO rows (name) VALUES (:name) RETURNING id", {"name": "x"}),
        ("INSERT INTO rows (id, name) VALUES (:number, :name)", {"name": "x", "number": None}),
        ("INSERT INTO rows (id, name) VALUES (nullif(:number, 1), :name)", {"name": "x", "number": 1}),
        ("INSERT INTO rows (name, other) SELECT name, other FROM rows", {}),
        ("INSERT INTO rows (id) VALUES (:number) ON CONFLICT (id) DO UPDATE SET other = 1", {"number": None}),
    ],
)
def test_number_is_never_drawn_by_chance(bench: Bench, sql: str, values: dict[str, Any]) -> None:
    """SQLite gives a new row the next number; behind the last one it would draw, and every replay would get another row."""
    statement = text(sql)
    assert bench.run(lambda tx: tx.execute(statement, **values).rowcount)[0] == Status.OK
    bench.run(lambda tx: tx.execute(insert(bench.rows).values(id=LAST)).rowcount)
    before = bench.site.rows("SELECT * FROM rows")
    status, body = bench.run(lambda tx: tx.execute(statement, **values).rowcount)
    assert (status, body["type"]) == (Status.FAILED, "ConstraintError")
    assert str(LAST) in body["message"]
    assert bench.site.rows("SELECT * FROM rows") == before


def test_rows_of_one_statement_do_not_run_into_the_last_number(bench: Bench) -> None:
    """The first of them would get it, and the second one would be drawn."""
    bench.run(lambda tx: tx.execute(insert(bench.rows).values(id=LAST - 1)).rowcount)
    two = text("INSERT INTO rows (name) VALUES ('a'), ('b')")
    assert bench.run(lambda tx: tx.execute(two).rowcount)[0] == Status.FAILED
    assert bench.site.rows("SELECT id FROM rows") == [(LAST - 1,)]


def test_number_of_its_own_passes_beside_the_last_one(bench: Bench) -> None:
    """Only a row whose number SQLite would have to draw is refused; one with a stated number goes in, old or new."""
    add = insert(bench.rows).values(id=bindparam("number"), name="x")
    for number in (LAST, 7, -3, 0):
        assert bench.run(lambda tx, number=number: tx.execute(add, number=number).rowcount) == (Status.OK, 1)  # type: ignore[misc]
    assert bench.run(lambda tx: tx.execute(text("INSERT INTO rows (id) VALUES (9)")).rowcount) == (Status.OK, 1)


@pytest.mark.parametrize("digest_rows", [True, False])
def test_text_that_is_no_utf8_is_written_with_and_without_digests(make_site: MakeSite, digest_rows: bool) -> None:
    """Whether changed rows are digested does not decide what a call answers; no digest and no delta comes of such a row."""
    db = Database("raw")
    rows = db.table("rows", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")
    write = insert(rows).values(id=bindparam("number"), name=func.char(bindparam("code")))

    @db.procedure(partition_by="number")
    def put(tx: Transaction, number: int, code: int) -> int:
        return tx.execute(write, number=number, code=code).rowcount

    site = make_site(db, digest_rows=digest_rows)
    changes = site.executor.gather_changes()
    if changes is not None:
        changes.cut(site.state.position, keep=())
    assert site.call("put", number=1, code=0xE9) == (Status.OK, 1)
    assert changes is None or changes.gathering
    applied = site.apply(("put", {"number": 2, "code": 0xD800}), ("put", {"number": 3, "code": 65}))
    assert applied.bodies == [b"1", b"1"]
    assert applied.rows_digest == (UNREADABLE if digest_rows else 0)
    assert changes is None or not changes.gathering
    assert site.rows("SELECT hex(name) FROM rows") == [("C3A9",), ("EDA080",), ("41",)]
