"""One prepared statement, beside APSW's cursor: values and rows, errors, and what may happen while it runs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procedures.native import accelerator, open_statements
from procedures.statements.call_state import CallState
from procedures.statements.changes import Written, inserted_class
from procedures.statements.prepared import NamesDiffer
from tests.procedures.native.both_ways import needs_accelerator, outcome
from tests.waiting import PATIENCE_S

pytestmark = needs_accelerator

ROOT: Final = Path(__file__).resolve().parents[3]


class Bench:
    """A connection on which a text is run as a prepared statement and by the cursor."""

    def __init__(self, path: str = ":memory:") -> None:
        self.connection = apsw.Connection(path)
        self.cursor = self.connection.cursor()
        self.state = CallState(0, lambda txn: txn)
        self.owner: Any = open_statements(self.connection)
        self.fell_back = 0
        self.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT UNIQUE, n INTEGER CHECK (n < 100)) STRICT")
        self.connection.execute("CREATE TABLE child (id INTEGER PRIMARY KEY, of INTEGER REFERENCES t)")
        self.connection.pragma("foreign_keys", 1)

    def statement(
        self, sql: str, *names: str, writes: bool = False, result: Any = None, pick: Callable[..., Any] | None = None
    ) -> Any:
        """`pick`: chooses the values instead of the names."""

        def run(params: dict[str, Any]) -> Any:
            self.fell_back += 1
            if pick is None and params.keys() != set(names):
                raise NamesDiffer
            values = pick(params) if pick is not None else tuple(params[name] for name in names)
            return self.by_cursor(sql, values, writes=writes)

        given = names if pick is None else None
        kind = result if writes else list
        return accelerator.Statement(self.owner, sql, given, pick or dict, self.state, run, kind, writes, ())

    def by_cursor(self, sql: str, values: Any, *, writes: bool) -> Any:
        if not writes:
            return list(self.cursor.execute(sql, values))
        self.cursor.execute(sql, values)
        return Written(self.connection.changes())


@pytest.fixture
def bench() -> Iterator[Bench]:
    """In memory; closed at the end."""
    made = Bench()
    yield made
    made.owner.close()
    made.connection.close()


def viewed(held: bytes) -> memoryview:
    """It as a buffer."""
    return memoryview(held)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.binary().map(bytearray),
    st.binary().map(viewed),
    st.sampled_from([object(), [1], 1j]),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(values, max_size=5))
def test_values_come_back_as_through_a_cursor(given_values: list[Any]) -> None:
    """Whatever is bound comes back, or is refused, as by APSW; a second run does not see the values of the first."""
    bench = Bench()
    names = [f"p{number}" for number in range(len(given_values))]
    sql = "SELECT 0 AS zero" + "".join(f", :{name}, typeof(:{name})" for name in names)
    statement = bench.statement(sql, *names)
    params = dict(zip(names, given_values, strict=True))
    for _ in range(2):
        assert outcome(lambda: statement(params)) == outcome(lambda: list(bench.cursor.execute(sql, tuple(given_values))))
    assert bench.owner.open == 1


numbers = st.integers(-1, 3) | st.sampled_from([99, None, "x", -(1 << 63)])
STATEMENTS: Final = (
    ("INSERT INTO t VALUES (:a, :b, :c)", True),
    ("INSERT INTO t VALUES (:a, :b, :c), (:a + 1, :b || '2', :c + 60), (:a + 2, :b || '3', 1)", True),
    ("INSERT OR FAIL INTO t VALUES (:a + 10, :b || '4', 2), (:a, :b, :c)", True),
    ("INSERT OR IGNORE INTO t VALUES (:a, :b, :c)", True),
    ("INSERT OR REPLACE INTO t VALUES (:a, :b, :c)", True),
    ("INSERT INTO t VALUES (:a, :b, :c) ON CONFLICT (id) DO UPDATE SET n = n + 1", True),
    ("INSERT INTO t VALUES (:a, :b, :c) ON CONFLICT DO NOTHING", True),
    ("INSERT INTO t VALUES (:a, :b, :c) RETURNING id, word", False),
    ("UPDATE t SET n = n + :c WHERE id >= :a AND word <> :b", True),
    ("UPDATE OR IGNORE t SET id = id + :a WHERE word <> :b OR n = :c", True),
    ("DELETE FROM t WHERE id = :a AND word <> :b AND n <> :c", True),
    ("INSERT INTO child VALUES (:a, :c + length(:b))", True),
    ("DELETE FROM t WHERE id = :a OR word = :b OR n = :c", True),
    ("SELECT abs(:c), sum(n + 9223372036854775000), :a, :b FROM t", False),
    ("SELECT json_extract(:b, :b), :a, :c FROM t", False),
    ("SELECT id, word, n FROM t WHERE id > :a OR word = :b OR n = :c ORDER BY id", False),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STATEMENTS), st.tuples(numbers, numbers, numbers))))
def test_statements_do_what_a_cursor_does(runs: list[Any]) -> None:
    """Counts, rows, errors with their codes, and what a statement that failed half-way leaves are those of APSW."""
    native, plain = Bench(), Bench()
    for (sql, writes), (a, b, c) in runs:
        statement = native.statement(sql, "a", "b", "c", writes=writes)
        params = {"a": a, "b": b if b is None else str(b), "c": c}
        one = outcome(lambda statement=statement, params=params: statement(params))  # type: ignore[misc]
        other = outcome(lambda sql=sql, params=params, writes=writes: plain.by_cursor(sql, tuple(params.values()), writes=writes))  # type: ignore[misc]
        assert one == other
    assert native.fell_back == 0
    for table in ("t", "child"):
        sql = f"SELECT * FROM {table}"  # noqa: S608
        assert native.connection.execute(sql).fetchall() == plain.connection.execute(sql).fetchall()


def test_a_change_is_noted_before_it_runs(bench: Bench) -> None:
    """The call that runs is the last that wrote, also when its statement fails: it may have left half a change."""
    statement = bench.statement("INSERT OR FAIL INTO t VALUES (:a, 'x', 1), (:a, 'y', 1)", "a", writes=True)
    bench.state.at = 7
    with pytest.raises(apsw.ConstraintError):
        statement({"a": 1})
    assert bench.state.wrote == 7
    assert bench.connection.execute("SELECT count(*) FROM t").get == 1


def test_a_failed_statement_holds_nothing(bench: Bench) -> None:
    """After an error the statement is reset: the transaction can end, the table can be dropped, and the next run begins anew."""
    failing = bench.statement("SELECT abs(n - :least) FROM t ORDER BY id", "least")
    bench.connection.execute("INSERT INTO t VALUES (1, 'a', 0), (2, 'b', -9223372036854775808)")
    bench.connection.execute("BEGIN")
    for _ in range(3):
        with pytest.raises(apsw.SQLError, match="overflow"):
            failing({"least": 0})
    assert failing({"least": -1}) == [(1,), ((1 << 63) - 1,)]
    bench.connection.execute("COMMIT")
    bench.connection.execute("DROP TABLE child")
    bench.connection.execute("DROP TABLE t")
    assert bench.fell_back == 0


def test_rows_of_many_columns_and_statements_of_many_parameters(bench: Bench) -> None:
    """A row of 1000 columns and a statement of 200 parameters are no matter."""
    names = [f"p{number}" for number in range(200)]
    many = bench.statement("SELECT " + ", ".join(f":{name}" for name in names), *names)
    assert many({name: number for number, name in enumerate(names)}) == [tuple(range(200))]
    wide = bench.statement("SELECT " + ", ".join(str(number) for number in range(1000)))
    assert wide({}) == [tuple(range(1000))]
    assert bench.owner.open == 2
    assert bench.fell_back == 0


def test_text_that_apsw_reads_otherwise_is_left_to_it(bench: Bench) -> None:
    """Several statements, a NUL, half a pair and what SQLite refuses go to the cursor, as often as they are run."""
    for sql in ("SELECT 1; SELECT 2", "SELECT 1 \x00 , 2", "SELECT '\ud800'", "SELECT nope", "", "SELECT 1 -- more\n;  "):
        statement = bench.statement(sql)
        before = bench.fell_back
        for _ in range(2):
            assert outcome(lambda statement=statement: statement({})) == outcome(  # type: ignore[misc]
                lambda sql=sql: list(bench.cursor.execute(sql, ()))  # type: ignore[misc]
            )
        assert bench.fell_back == before + 2
    assert bench.owner.open == 0


def test_names_that_differ_are_reported(bench: Bench) -> None:
    """Missing, wrong and superfluous names raise NamesDiffer, whether names or a function choose the values."""
    by_name = bench.statement("SELECT :a, :b", "a", "b")
    picked = bench.statement("SELECT :a, :b", pick=lambda params: (params["a"], params["b"]))
    for statement in (by_name, picked):
        assert statement({"a": 1, "b": 2}) == [(1, 2)]
        for wrong in ({}, {"a": 1}, {"a": 1, "c": 2}):
            with pytest.raises(NamesDiffer):
                statement(wrong)
    with pytest.raises(NamesDiffer):
        by_name({"a": 1, "b": 2, "c": 3})
    assert bench.fell_back == 0


@pytest.mark.parametrize("picked", [(1,), (1, 2, 3), [1, 2], None])
def test_values_of_another_number_are_left_to_apsw(bench: Bench, picked: Any) -> None:
    """What a function picks is bound here only if it is a tuple of as many values as there are parameters."""
    statement = bench.statement("SELECT :a, :b", pick=lambda params: picked)
    assert outcome(lambda: statement({})) == outcome(lambda: list(bench.cursor.execute("SELECT :a, :b", picked)))
    assert bench.fell_back == 1


def test_an_insert_keeps_what_was_inserted(bench: Bench) -> None:
    """The result of an INSERT of one row has the count, the parameters, and the key."""
    kind = inserted_class(("id",), (("a", None),), -1)
    statement = bench.statement("INSERT OR IGNORE INTO t VALUES (:a, :b, 1)", "a", "b", writes=True, result=kind)
    params = {"a": 5, "b": "x"}
    first, again = statement(params), statement(params)
    assert (type(first), first.rowcount, again.rowcount) == (kind, 1, 0)
    assert tuple(first.inserted_primary_key) == (5,)


def test_large_counts_have_a_result_of_their_own(bench: Bench) -> None:
    """A change of more rows than there are shared results for counts them all."""
    fill = (
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < :many) INSERT INTO t SELECT n, NULL, 1 FROM c"
    )
    counts = [bench.statement(fill, "many", writes=True)({"many": 1000}).rowcount]
    counts += [bench.statement("DELETE FROM t WHERE id > :n", "n", writes=True)({"n": n}).rowcount for n in (1000, 999, 997, 0)]
    assert counts == [1000, 0, 1, 2, 997]


def test_more_statements_than_may_be_open_go_through_apsw(bench: Bench) -> None:
    """Beyond 1024 prepared statements others run through the cursor, until some of the first are gone."""
    kept = [bench.statement(f"SELECT {number}") for number in range(1030)]
    assert [statement({}) for statement in kept] == [[(number,)] for number in range(1030)]
    assert (bench.owner.open, bench.fell_back) == (1024, 6)
    del kept[:10]
    assert kept[-1]({}) == [(1029,)]
    assert (bench.owner.open, bench.fell_back) == (1015, 6)


def test_a_schema_change_between_two_runs(bench: Bench) -> None:
    """A statement whose table gets a column is prepared again by SQLite, and sees it."""
    look = bench.statement("SELECT * FROM child")
    bench.connection.execute("INSERT INTO child VALUES (1, NULL)")
    assert look({}) == [(1, None)]
    bench.connection.execute("ALTER TABLE child ADD COLUMN more TEXT DEFAULT 'new'")
    assert look({}) == [(1, None, "new")]
    plain = bench.connection.cursor()
    assert look({}) == plain.execute("SELECT * FROM child").fetchall()
    bench.connection.execute("DROP TABLE child")
    assert outcome(lambda: look({})) == outcome(lambda: plain.execute("SELECT * FROM child").fetchall())
    assert bench.fell_back == 0


class Stop(KeyboardInterrupt):
    """What an operator does."""


def test_exceptions_of_python_that_sqlite_calls_pass_through(bench: Bench) -> None:
    """A function, a hook and a progress handler may raise anything: it arrives as it is, and the statement is reset."""

    def stop(*_: Any) -> Any:
        raise Stop

    bench.connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    bench.connection.create_scalar_function("stop", stop)
    change = bench.statement("UPDATE t SET n = n + 1", writes=True)
    call = bench.statement("SELECT stop(n) FROM t")
    with pytest.raises(Stop):
        call({})
    bench.connection.preupdate_hook(stop)
    with pytest.raises(Stop):
        change({})
    bench.connection.preupdate_hook(None)
    bench.connection.set_progress_handler(stop, 1)
    with pytest.raises(Stop):
        change({})
    bench.connection.set_progress_handler(lambda: True, 1)
    with pytest.raises(apsw.InterruptError):
        change({})
    bench.connection.set_progress_handler(None)
    assert change({}).rowcount == 1
    assert bench.fell_back == 0


def test_an_exception_of_the_authorizer_is_not_lost(bench: Bench) -> None:
    """An interrupt that arrives while the authorizer is asked ends the call; the next run prepares the statement."""
    statement = bench.statement("SELECT count(*) FROM t")
    asked = iter([True])

    def judge(*_: Any) -> int:
        if next(asked, False):
            raise Stop
        return apsw.SQLITE_OK

    bench.connection.authorizer = judge
    with pytest.raises(Stop):
        statement({})
    assert statement({}) == [(0,)]
    assert bench.fell_back == 0


def test_a_statement_that_runs_is_not_run_ended_or_closed_by_what_it_calls(bench: Bench) -> None:
    """A function that SQLite calls may run the same statement, through APSW, and others; it cannot close them."""
    seen: list[Any] = []

    def visit(*given: Any) -> Any:
        (value,) = given
        seen.append(other({"a": value}))
        seen.append(outcome(bench.owner.close)[0])
        if value == 1:
            seen.append(recursing({"a": value + 1}))
        return value

    bench.connection.create_scalar_function("visit", visit)
    recursing = bench.statement("SELECT visit(:a)", "a")
    other = bench.statement("SELECT :a * 10", "a")
    assert recursing({"a": 1}) == [(1,)]
    assert seen == [[(10,)], RuntimeError, [(20,)], RuntimeError, [(2,)]]
    assert bench.fell_back == 1


def test_parameters_that_change_meanwhile(bench: Bench) -> None:
    """Values are kept until the statement has run, even if a function that it calls empties the dict that they came in."""
    params: dict[str, Any] = {"a": "x" * 1000 + str(bench), "b": b"y" * 1000}
    expected = [(0, params["a"], params["b"])]

    def empty(*_: Any) -> int:
        params.clear()
        gc.collect()
        return 0

    bench.connection.create_scalar_function("empty", empty)
    assert bench.statement("SELECT empty(), :a, :b", "a", "b")(params) == expected


def test_results_are_kept_from_conversions_that_close(bench: Bench) -> None:
    """A conversion that ends all statements leaves this run to APSW."""

    def pick(_: Any) -> Any:
        bench.owner.close()
        return (1,)

    assert bench.statement("SELECT :a", pick=pick)({}) == [(1,)]
    assert (bench.owner.open, bench.fell_back) == (0, 1)


def test_closed_statements_go_through_apsw(bench: Bench) -> None:
    """After `close` a statement runs on the cursor; once the connection is closed, that says so."""
    statement, late = bench.statement("SELECT :a", "a"), bench.statement("SELECT :a + 1", "a")
    statement({"a": 1})
    bench.owner.close()
    bench.owner.close()
    assert statement({"a": 2}) == [(2,)]
    assert (bench.owner.open, bench.fell_back) == (0, 1)
    bench.connection.close()
    for each in (statement, late):
        with pytest.raises((apsw.ConnectionClosedError, apsw.CursorClosedError)):
            each({"a": 3})


def test_a_connection_that_was_closed_first_is_not_touched(bench: Bench) -> None:
    """A statement that was never run finds its connection closed, though nothing closed the statements."""
    statement = bench.statement("SELECT 1")
    bench.connection.close()
    with pytest.raises((apsw.ConnectionClosedError, apsw.CursorClosedError)):
        statement({})


FORCED: Final = """
import apsw
from procedures.native import accelerator, open_statements
from procedures.statements import prepared

for drop in (False, True):
    connection = apsw.Connection(":memory:")
    owner = open_statements(connection)
    made = [accelerator.Statement(owner, f"SELECT {n}", (), dict, None, print, list, False, ()) for n in range(3)]
    print([run({}) for run in made])
    try:
        connection.close(True)
    except apsw.BusyError:
        pass
    if drop:
        made.clear()
    owner.close()
    print(owner.open)
    del made, owner, connection
    print([apsw.Connection(":memory:").execute("SELECT 1").get for _ in range(100)] == [1] * 100)
"""


@pytest.mark.slow
def test_a_connection_closed_by_force_outlives_no_statement() -> None:
    """Of a connection that was closed by force the last statement, ended or dropped, takes all; nothing touches it again."""
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", FORCED]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.splitlines() == ["[[(0,)], [(1,)], [(2,)]]", "0", "True"] * 2


def test_statements_outlive_their_users(bench: Bench) -> None:
    """A statement that is dropped is ended; the connection lives as long as its statements do."""
    statement = bench.statement("SELECT 1")
    statement({})
    assert bench.owner.open == 1
    del statement
    assert bench.owner.open == 0
    other = Bench()
    statement = other.statement("SELECT 2")
    gone = weakref.ref(other.connection)
    del other
    gc.collect()
    assert gone() is not None
    assert statement({}) == [(2,)]
    del statement
    gc.collect()
    assert gone() is None


def make_cycle(bench: Bench) -> weakref.ref[Any]:
    """A statement whose fallback refers to it; nothing else does."""

    def run(params: dict[str, Any]) -> Any:
        return statement

    statement = accelerator.Statement(bench.owner, "SELECT 1", (), dict, bench.state, run, list, False, ())
    statement({})
    return weakref.ref(run)


def test_cycles_are_collected(bench: Bench) -> None:
    """A statement that its own fallback refers to is found by the collector, and ended."""
    gone = make_cycle(bench)
    assert bench.owner.open == 1
    gc.collect()
    assert gone() is None
    assert bench.owner.open == 0


def test_misuse_is_refused(bench: Bench) -> None:
    """Arguments of other kinds are TypeErrors."""
    statement = bench.statement("SELECT 1")
    new: Any = accelerator.Statement
    owners: Any = accelerator.Statements
    given = (bench.owner, "SELECT 1", (), dict, bench.state, dict, list, False, ())
    for place, wrong in ((0, bench.connection), (1, b"SELECT 1"), (2, ["a"]), (6, None)):
        with pytest.raises(TypeError):
            new(*given[:place], wrong, *given[place + 1 :])
    wrong_arguments: tuple[Any, ...] = ((), (1,), ({}, {}))
    for arguments in wrong_arguments:
        with pytest.raises(TypeError):
            statement(*arguments)
    with pytest.raises(TypeError):
        statement(params={})
    with pytest.raises(TypeError):
        owners()
    with pytest.raises(AttributeError):
        owners(5)


@pytest.mark.slow
def test_a_long_statement_lets_other_threads_run(bench: Bench) -> None:
    """Its second run gives up the GIL: another thread can interrupt it, though neither use the connection nor close it."""
    count = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < :many) SELECT count(begun(n)) FROM c"
    begun, seen = threading.Event(), []

    def note_begin(*given: Any) -> Any:
        (number,) = given
        if number > 10_000:
            begun.set()
        if number > 5_000_000:
            raise TimeoutError("nobody interrupts")
        return number

    bench.connection.create_scalar_function("begun", note_begin)
    statement, other = bench.statement(count, "many"), bench.statement("SELECT 5")
    assert (statement({"many": 10_000}), other({})) == ([(10_000,)], [(5,)])

    def meddle() -> None:
        begun.wait()
        seen.append(outcome(lambda: other({}))[0])
        seen.append(outcome(lambda: bench.statement("SELECT 6")({}))[0])
        seen.append(outcome(lambda: statement({"many": 1}))[0])
        seen.append(outcome(bench.owner.close)[0])
        bench.connection.interrupt()

    thread = threading.Thread(target=meddle)
    thread.start()
    with pytest.raises(apsw.InterruptError):
        statement({"many": 1 << 60})
    thread.join()
    assert seen == [apsw.ThreadingViolationError] * 3 + [RuntimeError]
    assert (statement({"many": 3}), other({})) == ([(3,)], [(5,)])


COLLECTED: Final = """
import threading, apsw
from procedures.native import accelerator, open_statements
from procedures.statements import prepared

connection = apsw.Connection(":memory:")
owner = open_statements(connection)
inside, leave = threading.Event(), threading.Event()

def wait():
    inside.set()
    leave.wait()
    return 1

connection.create_scalar_function("wait", wait)
made = [accelerator.Statement(owner, f"SELECT {n}", (), dict, None, dict, list, False, ()) for n in range(3)]
print([run({}) for run in made])
thread = threading.Thread(target=lambda: print(connection.execute("SELECT wait()").get))
thread.start()
inside.wait()
made.clear()
print(owner.open)
leave.set()
thread.join()
run = accelerator.Statement(owner, "SELECT 7", (), dict, None, dict, list, False, ())
print(run({}), owner.open)
owner.close()
connection.close()
print("closed")
"""


@pytest.mark.slow
def test_statements_collected_by_another_thread_do_not_stop_the_process() -> None:
    """While one thread is inside SQLite, another drops statements of the same connection: neither waits for the other."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.splitlines() == ["[[(0,)], [(1,)], [(2,)]]", "0", "1", "[(7,)] 1", "closed"]


@pytest.mark.slow
def test_nothing_leaks(bench: Bench) -> None:
    """20,000 runs, half of which fail, leave as many objects and as much memory as there were."""
    put = bench.statement(
        "INSERT INTO t VALUES (:a, :b, :c)", "a", "b", "c", writes=True, result=inserted_class(("id",), (("a", None),), -1)
    )
    look = bench.statement("SELECT :a, :b, zeroblob(3), 1.5, NULL", "a", "b")
    picked = bench.statement("SELECT :a", pick=lambda params: (params["a"],))
    bench.connection.execute("INSERT INTO t VALUES (1, 'a', 1)")

    def run_all(times: int) -> None:
        for number in range(times):
            for run, params in (
                (put, {"a": 1, "b": f"b{number}", "c": 1}),
                (put, {"a": 1, "b": "\ud800", "c": 1}),
                (look, {"a": f"text {number}", "b": b"%d" % number}),
                (look, {"a": 1 << 70, "b": bytearray(b"x")}),
                (look, {"a": 1}),
                (picked, {"a": number + 10**6}),
                (picked, {"b": number}),
            ):
                outcome(lambda run=run, params=params: run(params))  # type: ignore[misc]
            outcome(lambda: bench.statement("SELECT nope")({}))
            bench.statement("SELECT 1")({})

    run_all(50)
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    run_all(20)
    before, _ = tracemalloc.get_traced_memory()
    run_all(2300)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(gc.get_objects()) - objects < 50
    assert after - before < 40_000  # an object a run would be more
    assert bench.owner.open == 3
