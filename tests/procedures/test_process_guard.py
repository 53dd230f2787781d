"""A procedure starts no process: a fork of it would run the rest of the batch a second time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, bindparam, insert, select

from procedures import Database, Transaction
from procedures.execution import process_guard
from procedures.execution.executor import Status
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]
WAYS = ("fork", "forkpty", "spawn", "spawnv", "system", "popen", "exec", "pool")


def start_process(way: str) -> None:
    """Starts a process in one of the ways that Python knows; a child ends here."""
    import multiprocessing
    import pty

    if way in ("fork", "forkpty"):
        child = os.fork() if way == "fork" else pty.fork()[0]
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    elif way == "spawn":
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    elif way == "spawnv":
        os.spawnv(os.P_WAIT, "/bin/true", ["true"])  # noqa: S606
    elif way == "system":
        os.system("true")  # noqa: S605
    elif way == "popen":
        subprocess.run(["/bin/true"], check=True)
    elif way == "exec":
        os.execv("/bin/true", ["true"])  # noqa: S606
    else:
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()


def starters() -> Database:
    """Procedures that start a process after they changed a row."""
    db = Database("starters")
    table = db.table("notes", Column("id", Integer, primary_key=True), partition_by="id")
    make = insert(table).values(id=bindparam("number"))
    find = select(table.c.id).where(table.c.id == bindparam("number"))

    @db.procedure(partition_by="number")
    def add(tx: Transaction, number: int) -> None:
        tx.execute(make, number=number)

    @db.procedure(partition_by="number")
    def add_and_start(tx: Transaction, number: int, way: str) -> None:
        tx.execute(make, number=number)
        start_process(way)

    @db.procedure(partition_by="number", read_only=True)
    def find_and_start(tx: Transaction, number: int, way: str) -> int | None:
        start_process(way)
        found: int | None = tx.execute(find, number=number).scalar()
        return found

    return db


@pytest.mark.parametrize("way", WAYS)
def test_procedure_cannot_start_a_process(make_site: MakeSite, way: str) -> None:
    """Whichever way it tries, the call fails by name and leaves no trace, and its neighbours are executed."""
    site = make_site(starters())
    applied = site.apply(("add", {"number": 1}), ("add_and_start", {"number": 2, "way": way}), ("add", {"number": 3}))
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.OK]
    assert b'"ProcessRefused"' in applied.bodies[1]
    assert b"add_and_start" in applied.bodies[1]
    assert site.rows("SELECT id FROM notes") == [(1,), (3,)]


def test_read_only_procedure_cannot_start_a_process(make_site: MakeSite) -> None:
    """A query on a site is held to the same."""
    site = make_site(starters())
    numbers = {procedure.name: number for number, procedure in enumerate(site.db.procedure_list)}
    _, [(status, body)] = site.executor.read([(numbers["find_and_start"], [1, "fork"])], catalog=1)
    assert (status, b"find_and_start" in body) == (Status.FAILED, True)


def test_program_around_procedures_may_start_processes(make_site: MakeSite) -> None:
    """Between batches, and in other threads, processes start as ever."""
    site = make_site(starters())
    site.apply(("add", {"number": 1}))
    start_process("fork")
    start_process("popen")


RAW_FORK = """
import os, sys
from procedures.execution import process_guard as processes
from tests.procedures.sites import Site
from tests.procedures.test_process_guard import starters
from pathlib import Path
import tests.procedures.test_process_guard as module

processes.REFUSED_EVENTS.clear()  # a fork that no event announces, as an extension would make it
module.start_process = lambda way: os.fork()
site = Site(Path(sys.argv[1]), starters())
site.apply(("add_and_start", {"number": 1, "way": "fork"}), ("add", {"number": 2}))
print(os.getpid(), site.rows("SELECT id FROM notes"), flush=True)
"""


@pytest.mark.slow
def test_child_of_an_unseen_fork_does_not_commit(tmp_path: Path) -> None:
    """A child that came about although nothing announced it ends before it commits or answers the batch."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RAW_FORK), str(tmp_path / "p.db")], capture_output=True, text=True, check=True
    )
    assert [line.split(" ", 1)[1] for line in done.stdout.splitlines()] == ["[(1,), (2,)]"]


def test_children_end_at_once_where_none_may_live() -> None:
    """In a process that only runs procedures a fork of any thread or module ends as it begins."""
    program = (
        "import os; from procedures.execution.process_guard import end_children; "
        "end_children(); child = os.fork(); print('alive', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["alive"]
    assert process_guard.CHILD_CODE


@pytest.mark.parametrize("inner", ["caught", "thread"])
def test_caught_attempt_fails_the_call(make_site: MakeSite, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A procedure that catches the refusal, or is not told of it since a thread got it, fails all the same; others do not."""
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    db = Database("catchers")
    table = db.table("notes", Column("id", Integer, primary_key=True), partition_by="id")
    make = insert(table).values(id=bindparam("number"))

    def fork() -> None:
        with contextlib.suppress(Exception):
            if os.fork() == 0:
                os._exit(0)

    @db.procedure(partition_by="number")
    def add(tx: Transaction, number: int, tries: bool) -> None:
        tx.execute(make, number=number)
        if tries and inner == "caught":
            fork()
        elif tries:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()

    process_guard._alone.append(True)
    try:
        site = make_site(db)
        applied = site.apply(*[("add", {"number": number, "tries": number == 2}) for number in (1, 2, 3)])
    finally:
        process_guard._alone.pop()
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.OK]
    assert b'"ProcessRefused"' in applied.bodies[1]
