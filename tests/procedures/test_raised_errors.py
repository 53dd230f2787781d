"""Whatever a procedure raises is that call's failure, however it prints or lies: reading it ends no batch and no node."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Column, Integer

import cmdlog
from procedures.code.bundle import capture_bundle
from procedures.code.loaded_modules import load_bundle
from procedures.declaration.database import Database
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Applied, Status
from procedures.execution.failure_trace import FailureTracer
from procedures.raised_errors import class_name, is_raised, repr_of
from tests.procedures.hostile_app import RAISED, db
from tests.procedures.sites import Site
from tests.procedures.test_failure_trace import traced

MakeSite = Callable[..., Site]


@pytest.fixture(autouse=True)
def ended_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What cannot end is collected here and not reported: pytest would read it, and what it was collected in, and fail."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


def failed(kind: str, message: str) -> dict[str, str]:
    """Body of a failed call."""
    return {"type": kind, "message": message}


def calls(how: str) -> list[tuple[str, dict[str, Any]]]:
    """Calls around two that raise."""
    raising = [("fail", {"item": 2, "how": how, "write": write}) for write in (False, True)]
    return [("keep", {"item": 1}), *raising, ("keep", {"item": 3})]


@pytest.mark.parametrize("how", RAISED)
def test_what_is_raised_is_the_outcome_of_its_call_alone(make_site: MakeSite, how: str) -> None:
    """The call fails with the name of the class and with its text where it has one; the others of its batch run."""
    _, kind, text = RAISED[how]
    site = make_site(db)
    applied = site.apply(*calls(how))
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.FAILED, Status.OK]
    assert [orjson.loads(body) for body in applied.bodies[1:3]] == [failed(kind, text)] * 2
    assert site.rows("SELECT id FROM kept ORDER BY id") == [(1,), (3,)]


@pytest.mark.parametrize("how", sorted(RAISED)[::4])
def test_a_read_that_raises_is_answered(make_site: MakeSite, how: str) -> None:
    """A read fails as a call does, and the next one is answered."""
    _, kind, text = RAISED[how]
    site = make_site(db)
    _, answers = site.executor.read([(site.numbers["fail_read"], [1, how]), (site.numbers["count"], [1])], catalog=1)
    assert [(status, orjson.loads(body)) for status, body in answers] == [(Status.FAILED, failed(kind, text)), (Status.OK, 0)]


def replayed(how: str, site: Site, database: Database) -> Applied:
    """The batch as another process applies it: savepoints come on later or earlier."""
    site.db = database
    site.executor._databases = lambda _version: database
    return site.apply(*calls(how))


@pytest.mark.parametrize("how", sorted(RAISED)[::4])
def test_live_text_equals_the_text_of_a_replay(make_site: MakeSite, how: str) -> None:
    """A node that makes traces, keeps the exceptions and shows locals answers as a replay of the bundle does."""
    live = traced(make_site(db), FailureTracer(show_locals=True, keep_errors=True)).apply(*calls(how))
    again = replayed(how, make_site(db), load_bundle(capture_bundle(db)))
    assert (live.bodies, live.result_hashes, live.rows_digest) == (again.bodies, again.result_hashes, again.rows_digest)
    assert [trace.procedure for trace in live.traces] == ["fail", "fail"] * (2 if len(live.traces) > 2 else 1)


@pytest.mark.parametrize("when", ["text", "end"])
@pytest.mark.parametrize("savepoints", [0, 5])
def test_an_exception_that_writes_leaves_no_trace(make_site: MakeSite, when: str, savepoints: int) -> None:
    """Rows that change while an exception is read, or while it ends, are those of a call that failed."""
    site = make_site(db)
    site.executor._savepoint_batches = savepoints
    applied = site.apply(("fail_and_write", {"item": 5, "when": when}), ("keep", {"item": 6}))
    assert list(applied.statuses) == [Status.FAILED, Status.OK]
    assert site.rows("SELECT id FROM kept") == [(6,)]


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("savepoints", [0, 5])
def test_a_failure_of_the_machine_while_a_text_is_made_names_the_call(
    make_site: MakeSite, kind: type[BaseException], savepoints: int
) -> None:
    """It is a fault as anywhere in a procedure, so the call can be left out."""

    class Fails(Exception):
        def __str__(self) -> str:
            raise kind

    app = Database("fails")
    kept = app.table("kept", Column("id", Integer, primary_key=True), partition_by="id")

    @app.procedure(partition_by="item")
    def fail(tx: Any, item: int) -> None:
        tx.execute(kept.insert(), id=item)
        raise Fails

    site = make_site(app)
    site.executor._savepoint_batches = savepoints
    with pytest.raises(EnvironmentFault) as caught:
        site.apply(("fail", {"item": 1}), ("fail", {"item": 2}))
    assert (caught.value.procedure, caught.value.position) == ("fail", 0)


def test_readers_ask_no_code_of_the_application() -> None:
    """The class, its name and a description come from what no class can replace."""
    for make, kind, _ in RAISED.values():
        error = _raised_by(make)
        assert is_raised(error, BaseException)
        assert not is_raised(error, MemoryError)
        assert class_name(error) == kind
        assert repr_of(error)


def _raised_by(make: Callable[[], BaseException]) -> BaseException:
    try:
        raise make()
    except BaseException as error:  # noqa: BLE001 - any
        return error


@pytest.mark.slow
def test_an_embedded_node_serves_on(tmp_path: Path) -> None:
    """Each of them is a failure that the caller gets, and the next call is served."""
    with cmdlog.open(tmp_path / "data", db, partitions=1) as shop:
        for number, how in enumerate(RAISED):
            with pytest.raises(cmdlog.ProcedureFailed):
                shop.call("fail", item=number, how=how, write=True)
            with pytest.raises(cmdlog.ProcedureFailed):
                shop.call("fail_read", item=number, how=how)
            assert shop.call("keep", item=number) == number
