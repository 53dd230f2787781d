"""The decimal context of calls: the same on every thread, and of nobody else."""

from __future__ import annotations

import decimal
import threading
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, Inexact
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Column, Integer, Text, bindparam, insert

from procedures import Database, Transaction
from procedures.execution.call_settings import standard_settings
from procedures.execution.executor import Applied
from tests.procedures.migration.people import ChangingSite
from tests.procedures.sites import Site

THIRD = "0.3333333333333333333333333333"  # 28 digits
PRIOR = [
    Context(prec=9),
    Context(prec=50, rounding=decimal.ROUND_UP),
    Context(Emax=0, Emin=0, capitals=0, clamp=1),
    Context(traps=[Inexact]),
    Context(traps=[]),
]


def divisions() -> Database:
    """Procedures that show the context that they run in, and one that changes it."""
    db = Database("divisions")
    results = db.table("results", Column("id", Integer, primary_key=True), Column("text", Text), partition_by="id")
    keep = insert(results).values(id=bindparam("id_"), text=bindparam("text_"))

    @db.procedure(partition_by="number")
    def divide(tx: Transaction, number: int) -> list[str]:
        tx.execute(keep, id_=number, text_=str(Decimal(1) / 3))
        return [str(Decimal(2) / 3), str(Decimal("1e1000") * 1)]

    @db.procedure(partition_by="number")
    def divide_by_zero(tx: Transaction, number: int) -> str:
        return str(Decimal(number) / 0)

    @db.procedure(partition_by="number")
    def narrow(tx: Transaction, number: int) -> str:
        decimal.getcontext().prec = 3
        return str(Decimal(1) / 3)

    @db.procedure(partition_by="number")
    def replace(tx: Transaction, number: int) -> str:
        decimal.setcontext(Context(prec=4))
        return str(Decimal(1) / 3)

    @db.procedure(partition_by="number")
    def fail(tx: Transaction, number: int) -> None:
        tx.execute(keep, id_=number, text_="taken back")
        raise ValueError("after a change")

    @db.procedure(partition_by="number")
    def precisely(tx: Transaction, number: int) -> str:
        with decimal.localcontext(prec=5):
            narrow = Decimal(1) / 3
        return f"{narrow} {Decimal(1) / 3}"

    @db.procedure(partition_by="number", read_only=True)
    def read(tx: Transaction, number: int) -> str:
        return str(Decimal(1) / 3)

    return db


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Site]:
    """One partition of the application."""
    site = Site(tmp_path / "state.db", divisions())
    yield site
    site.close()


def under(context: Context, run: Callable[[], Any]) -> Any:
    """What it brings on a new thread that has this context, which is as before on return."""
    found: list[Any] = []

    def work() -> None:
        mine = context.copy()
        decimal.setcontext(mine)
        before = repr(mine)
        found.append(run())
        found.append(decimal.getcontext() is mine and repr(mine) == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[1:] == [True], "the thread has another context than before, or it was changed"
    return found[0]


def outcomes(applied: Applied) -> list[Any]:
    """Decoded bodies."""
    return [orjson.loads(body) for body in applied.bodies]


def test_calls_bring_the_same_whatever_context_the_thread_has(tmp_path: Path) -> None:
    """Results, failures, rows and their digest; and the thread has its own context back."""
    found = []
    for number, prior in enumerate([Context(), *PRIOR]):
        site = Site(tmp_path / f"{number}.db", divisions())
        applied = under(prior, partial(site.apply, ("divide", {"number": 1}), ("divide_by_zero", {"number": 2})))
        found.append((applied.statuses, outcomes(applied), applied.rows_digest, site.rows("SELECT text FROM results")))
        site.close()
    assert found == [found[0]] * len(found)
    assert found[0][3] == [(THIRD,)]
    assert found[0][1][0] == ["0.6666666666666666666666666667", "1E+1000"]


def test_standard_context_has_the_documented_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a module has changed what new threads begin with."""
    monkeypatch.setattr(decimal.DefaultContext, "prec", 50)
    with standard_settings():
        now = decimal.getcontext()
        assert (now.prec, now.rounding, now.Emin, now.Emax) == (28, decimal.ROUND_HALF_EVEN, -999_999, 999_999)
        assert (now.capitals, now.clamp) == (1, 0)
        assert [signal for signal, set_ in now.traps.items() if set_] == [
            decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow,
        ]  # fmt: skip
        assert not any(now.flags.values())


@pytest.mark.parametrize("prior", PRIOR)
def test_reads_and_migrations_have_it_too(site: Site, tmp_path: Path, prior: Context) -> None:
    """They run beside the batches, and give the thread its own context back."""
    _, answers = under(prior, lambda: site.executor.read([(site.numbers["read"], [1])], catalog=1))
    assert orjson.loads(answers[0][1]) == THIRD
    seen: list[str] = []
    db = divisions()

    @db.migration("0001_divide")
    def divide(tx: Transaction, op: Any) -> None:
        seen.append(str(Decimal(1) / 3))

    changing = ChangingSite(tmp_path / "changing.db", divisions())
    changing.start()
    under(prior, lambda: changing.deploy(db))
    changing.executor.close()
    changing.state.close()
    assert set(seen) == {THIRD}


@pytest.mark.parametrize("changes", ["narrow", "replace"])
def test_what_a_call_sets_ends_with_its_batch(site: Site, changes: str) -> None:
    """The next batch begins with a context of its own, and so does the thread."""
    assert under(Context(prec=9), lambda: site.call(changes, number=1))[1] in ("0.333", "0.3333")
    assert site.call("divide", number=2)[1] == ["0.6666666666666666666666666667", "1E+1000"]


def test_second_run_of_a_batch_begins_as_the_first_did(site: Site) -> None:
    """A call that fails after a change makes the batch run again, with savepoints: nothing of the first run is left."""
    calls: list[tuple[str, dict[str, Any]]] = [("divide", {"number": 1}), ("narrow", {"number": 2}), ("fail", {"number": 3})]
    applied = under(Context(), lambda: site.apply(*calls))
    assert (list(applied.statuses)[:2], outcomes(applied)[0][0]) == ([0, 0], "0.6666666666666666666666666667")
    assert site.rows("SELECT text FROM results") == [(THIRD,)]


def test_local_context_ends_with_its_block(site: Site) -> None:
    """That is how a procedure asks for another precision."""
    assert site.call("precisely", number=1) == (0, f"0.33333 {THIRD}")
