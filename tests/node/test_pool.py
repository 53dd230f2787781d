"""Queries in processes of their own: nothing that a statement does reaches the process that asked."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.node.outcome import NotReady
from cmdlog.node.queries.pool import PIECE_BYTES, QueryCancelled, QueryPool, Ticket
from cmdlog.node.queries.query import QueryLimit, QueryLimits, QueryRefused
from procedures.storage.state import PartitionState
from tests.processes import is_gone
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow  # processes are started

MEMORY_BYTES_MAX = 64 << 20
LETTERS = "replace(hex(zeroblob(4000000)), '0', 'a')"
FOR_EVER_IN_ONE_STEP = f"SELECT instr({LETTERS}, substr({LETTERS}, 1, 4000000) || 'b')"


def recursive(select: str) -> str:
    """A SELECT over all natural numbers, `n (i)`, and over 1,000 megabytes, `m (i, h)`."""
    numbers = "n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    megabytes = "m (i, h) AS (SELECT i, i || hex(zeroblob(500000)) FROM n LIMIT 1000)"
    return f"WITH RECURSIVE {numbers}, {megabytes} {select}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state file with one table."""
    path = tmp_path_factory.mktemp("state") / "p0.sqlite"
    state = PartitionState.open(path, partition=0)
    state.connection.execute("CREATE TABLE items (id INTEGER NOT NULL PRIMARY KEY, name TEXT, data BLOB)")
    state.connection.execute("INSERT INTO items VALUES (1, 'one', x'00ff'), (2, 'zwei \U0001f600', NULL)")
    state.connection.execute("UPDATE _cmdlog_meta SET txn_id = ?", (1 << 60,))
    state.close()
    return str(path)


@pytest.fixture(scope="module")
def pool() -> Iterator[QueryPool]:
    """One for all tests."""
    pool = QueryPool(memory_bytes_max=MEMORY_BYTES_MAX, start_timeout_s=PATIENCE_S)
    yield pool
    pool.close()
    assert pool.pids() == []


def ask(pool: QueryPool, path: str, sql: str, *params: Any, timeout_s: float = PATIENCE_S, ticket: Ticket | None = None) -> Any:
    """The answer, decoded."""
    limits = QueryLimits(rows_max=10_000, bytes_max=8 << 20, timeout_s=timeout_s, wal_bytes_max=1 << 30)
    answer = pool.run({0: path}, sql, params, limits, ticket=ticket)
    return orjson.loads(b"".join((answer.take_first(), *iter(answer.read_piece, b""))))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def test_answer_is_the_json_that_callers_get(pool: QueryPool, path: str) -> None:
    """Bytes are base64, transaction ids text, and parameters are bound."""
    answer = ask(pool, path, "SELECT id, name, data FROM items WHERE id >= ? ORDER BY id", 1)
    rows = [[1, "one", "AP8="], [2, "zwei \U0001f600", None]]
    assert answer == {"columns": ["id", "name", "data"], "rows": rows, "as_of": {"0": str(1 << 60)}}


def test_one_process_serves_query_after_query(pool: QueryPool, path: str) -> None:
    """A refused statement costs none, either."""
    ask(pool, path, "SELECT 1")
    before = pool.pids()
    for _ in range(3):
        ask(pool, path, "SELECT 1")
        with pytest.raises(QueryRefused):
            ask(pool, path, "DELETE FROM items")
    assert pool.pids() == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + ",".join("hex(zeroblob(3900000))" for _ in range(40)),
        recursive("SELECT group_concat(h) FROM m"),
        recursive("SELECT json_group_array(h) FROM m"),
        recursive("SELECT i, h FROM m ORDER BY h, i DESC"),
        recursive("SELECT count(*) FROM (SELECT DISTINCT h FROM m)"),
        recursive("SELECT max(h) OVER (ORDER BY h DESC) FROM m"),
        recursive("SELECT i, hex(zeroblob(500)) FROM n"),
        recursive("SELECT i FROM n"),
    ],
    ids=["values", "group_concat", "json", "sort", "distinct", "window", "bytes", "rows"],
)
def test_memory_of_a_query_is_bounded(pool: QueryPool, path: str, sql: str) -> None:
    """Whatever asks for gigabytes is refused with a limit's name; its process keeps within its own, and this one takes none."""
    own = peak_bytes(os.getpid())
    with pytest.raises(QueryLimit, match=r"query_(memory_bytes|bytes|rows)_max"):
        ask(pool, path, sql)
    assert peak_bytes(os.getpid()) - own < 32 << 20
    for pid in pool.pids():
        assert peak_bytes(pid) < MEMORY_BYTES_MAX + (160 << 20)  # Python and its libraries take 45 MB, a result some more
    assert ask(pool, path, "SELECT count(*) FROM items")["rows"] == [[2]]


LARGE_VALUES = ("zeroblob(8300000)", "hex(zeroblob(4000000))", "replace(hex(zeroblob(4100000)), '00', char(1))")
AT_THE_LIMIT = [
    *("SELECT " + ",".join([value] * count) for value in LARGE_VALUES for count in (2, 3, 4, 50)),
    "SELECT " + ",".join(["replace(hex(zeroblob(2000000)), '0', char(233)) || char(128512)"] * 2),
    "SELECT " + ",".join(["a.*"] * 200) + ' FROM (SELECT 1 AS "' + "\1" * 400_000 + '") AS a',
    recursive("SELECT i, replace(hex(zeroblob(800)), '00', char(1)) FROM n"),
    recursive(" ".join(("SELECT", ",".join(["i"] * 200), "FROM n"))),
]


def test_query_at_the_limit_of_memory_is_answered(pool: QueryPool, path: str) -> None:
    """No encoder runs out of memory, which is the end of a process: whatever is asked, the same one serves the next query."""
    ask(pool, path, "SELECT 1")
    before = pool.pids()
    for sql in AT_THE_LIMIT:
        with pytest.raises(QueryLimit, match=r"query_(memory_bytes|bytes|rows)_max"):
            ask(pool, path, sql)
        assert pool.pids() == before
    assert ask(pool, path, "SELECT count(*) FROM items")["rows"] == [[2]]


def test_answer_that_is_not_read_stays_in_its_process(pool: QueryPool, path: str) -> None:
    """This process reads a piece; closing the answer reads the rest for nobody, and the process serves the next query."""
    limits = QueryLimits(rows_max=10_000, bytes_max=8 << 20, timeout_s=PATIENCE_S, wal_bytes_max=1 << 30)
    before = pool.pids()
    answer = pool.run({0: path}, "SELECT hex(zeroblob(3900000))", (), limits)
    assert (answer.size > 7_800_000, len(answer.take_first())) == (True, PIECE_BYTES)
    answer.close()
    assert ask(pool, path, "SELECT 1")["rows"] == [[1]]
    assert pool.pids() == before
    answer = pool.run({0: path}, "SELECT hex(zeroblob(3900000))", (), limits)
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        deque(iter(answer.read_piece, b""), maxlen=0)
    answer.close()
    assert ask(pool, path, "SELECT 1")["rows"] == [[1]]


UNDER_LIMIT = """
import sys
from cmdlog.node.queries.query import QueryLimits
from cmdlog.node.queries.pool import QueryPool
pool = QueryPool(memory_bytes_max=1 << 30, start_timeout_s=300.0)
try:
    for sql in sys.argv[2:]:
        try:
            limits = QueryLimits(rows_max=10, bytes_max=8 << 20, timeout_s=180.0, wal_bytes_max=1 << 30)
            pool.run({0: sys.argv[1]}, sql, (), limits).close()
            print("answered")
        except Exception as error:
            print(type(error).__name__, error)
finally:
    pool.close()
"""


@pytest.mark.slow
def test_a_limit_of_the_process_is_named_and_stops_no_small_query(path: str) -> None:
    """Under `ulimit -v` a query that fits is answered; one that does not is told of that limit beside the setting."""
    limit_bytes = 300 << 20
    lower = partial(resource.setrlimit, resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    command = [
        sys.executable,
        "-c",
        UNDER_LIMIT,
        path,
        "SELECT count(*) FROM items",
        recursive("SELECT i, h FROM m ORDER BY h, i DESC"),
    ]
    command = ["setpriv", "--bounding-set=-sys_resource", *command] if os.geteuid() == 0 and shutil.which("setpriv") else command
    done = subprocess.run(command, preexec_fn=lower, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    small, large = done.stdout.splitlines()
    assert small == "answered"
    assert large.startswith("QueryLimit")
    assert "query_memory_bytes_max, or than its process may have" in large
    assert f"RLIMIT_AS (`ulimit -v`) is {limit_bytes:,} bytes" in large


def test_endless_statement_ends_at_its_time(pool: QueryPool, path: str) -> None:
    """By SQLite's own interrupt, so the process stays."""
    ask(pool, path, "SELECT 1")
    before = pool.pids()
    with pytest.raises(QueryLimit, match=r"query_timeout_s=0\.2"):
        ask(pool, path, recursive("SELECT max(i) FROM n"), timeout_s=0.2)
    assert pool.pids() == before


def test_step_that_does_not_come_back_ends_with_its_process(pool: QueryPool, path: str) -> None:
    """One call of `instr` would take days and cannot be interrupted: the kernel's timer ends the process, another one serves."""
    ask(pool, path, "SELECT 1")
    before = pool.pids()
    with pytest.raises(QueryLimit, match=r"query_timeout_s=0\.2"):
        ask(pool, path, FOR_EVER_IN_ONE_STEP, timeout_s=0.2)
    assert ask(pool, path, "SELECT 1")["rows"] == [[1]]
    assert pool.pids() != before


def under_way(ticket: Ticket) -> bool:
    """Whether a process has the whole request."""
    return ticket._worker is not None


def in_a_thread(pool: QueryPool, path: str, sql: str, ticket: Ticket) -> tuple[threading.Thread, list[BaseException]]:
    """A query whose error is kept."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            ask(pool, path, sql, timeout_s=PATIENCE_S, ticket=ticket)
        except (QueryCancelled, QueryRefused, NotReady) as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_cancelled_query_ends_and_its_process_stays(pool: QueryPool, path: str) -> None:
    """Before it starts, while it runs and when it is done: the word reaches that query and no other."""
    ask(pool, path, "SELECT 1")
    before = pool.pids()
    for runs in (False, False, True, True):
        ticket = Ticket()
        thread, raised = in_a_thread(pool, path, recursive("SELECT max(i) FROM n"), ticket)
        wait_for(lambda runs=runs, ticket=ticket: not runs or under_way(ticket))  # type: ignore[misc]
        ticket.cancel()
        thread.join(PATIENCE_S)
        assert [type(error) for error in raised] == [QueryCancelled]
        done = Ticket()
        assert ask(pool, path, "SELECT count(*) FROM items", ticket=done)["rows"] == [[2]]
        done.cancel()
    assert pool.pids() == before


def test_process_that_was_killed_is_replaced(pool: QueryPool, path: str) -> None:
    """The query under way is refused, the next one is served; SIGTERM, which a service manager may send to all, ends none."""
    for number, error, goes in ((signal.SIGTERM, QueryCancelled, False), (signal.SIGKILL, QueryLimit, True)):
        ticket = Ticket()
        thread, raised = in_a_thread(pool, path, recursive("SELECT max(i) FROM n"), ticket)
        wait_for(partial(under_way, ticket))
        before = pool.pids()
        for pid in before:
            os.kill(pid, number)
        if not goes:
            ticket.cancel()
        thread.join(PATIENCE_S)
        assert [type(one) for one in raised] == [error]
        assert (pool.pids() != before) is goes
    assert ask(pool, path, "SELECT 1")["rows"] == [[1]]


def test_missing_file_is_not_ready(pool: QueryPool, path: str) -> None:
    """A partition that is being restored is not the caller's mistake."""
    with pytest.raises(NotReady, match="partition 0"):
        ask(pool, path + ".none", "SELECT 1")


def test_closed_pool_ends_its_queries_and_processes(path: str) -> None:
    """A stopping server waits for no query."""
    pool = QueryPool(memory_bytes_max=MEMORY_BYTES_MAX, start_timeout_s=PATIENCE_S)
    ticket = Ticket()
    thread, raised = in_a_thread(pool, path, recursive("SELECT max(i) FROM n"), ticket)
    wait_for(lambda: under_way(ticket))
    (pid,) = pool.pids()
    pool.close()
    thread.join(PATIENCE_S)
    assert [type(error) for error in raised] == [NotReady]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(NotReady):
        ask(pool, path, "SELECT 1")


@pytest.mark.usefixtures("cold_start")
def test_process_ends_with_whoever_started_it(path: str, tmp_path: Path) -> None:
    """A node that is killed leaves none behind: the socket's end is the word."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool = QueryPool(memory_bytes_max=MEMORY_BYTES_MAX, start_timeout_s=PATIENCE_S)
            ask(pool, path, "SELECT 1")
            os.write(write, str(pool.pids()[0]).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    pid = int(os.read(read, 20))
    os.close(read)
    os.waitpid(child, 0)
    wait_for(lambda: is_gone(pid))
