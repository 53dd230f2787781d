"""The judge of TPC-C's demo finds each kind of wrong in a run that is otherwise right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cli.demo import tpcc as demo_tpcc
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall, prove
from cmdlog.cli.demo.tpcc import Tpcc, TpccState
from procedures.samples import tpcc
from tests.procedures.sites import Site

KINDS = ("ok", "aborted", "failed")


class Shown:
    """One partition as a server would show it."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def rows(self, sql: str, params: Sequence[Any]) -> list[Sequence[Any]]:
        """Rows of a SELECT."""
        return list(self.site.state.connection.execute(sql, tuple(params)).fetchall())

    def call(self, procedure: str) -> Any:
        """The proof of TPC-C calls nothing."""
        raise AssertionError(procedure)


def answered(site: Site, calls: Sequence[DemoCall]) -> None:
    """Runs the calls, and tells them what a client would hear."""
    for call in calls:
        if not call.logged:
            call.answer = ClientAnswer(site.state.position.txn_id, 0, "ok", None)
            continue
        applied = site.apply((call.procedure, call.params))
        value = orjson.loads(applied.bodies[0])
        status = applied.statuses[0]
        call.answer = ClientAnswer(applied.txn_ids[0], None, KINDS[status], value["code"] if status else value)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Tpcc, Site, list[DemoCall]]]:
    """A faultless run of 150 calls on one partition."""
    for name, value in (("WAREHOUSES", 2), ("CUSTOMERS", 5), ("ITEMS", 30), ("PAGE_ROWS", 7)):
        monkeypatch.setattr(demo_tpcc, name, value)
    work = Tpcc(calls=150, partitions=1, seed=3)
    site = Site(tmp_path / "state.db", tpcc.db)
    calls = [*work.loading, *work.load]
    answered(site, calls)
    yield work, site, calls
    site.close()


def differences(work: Tpcc, site: Site, calls: list[DemoCall]) -> list[str]:
    """What the judge holds against the run."""
    return prove(calls, work.proofs(calls, work.read_state(Shown(site))), kept={}, rebuilt={}).differences


def test_a_faultless_run_is_proved(run: tuple[Tpcc, Site, list[DemoCall]]) -> None:
    """Nothing is held against a right run, read page by page; its orders, payments and deliveries are all looked at."""
    work, site, calls = run
    assert differences(work, site, calls[::-1]) == []
    kinds = {call.procedure for call in calls if call.answer is not None and call.answer.kind == "ok"}
    assert {"new_order", "payment", "delivery"} <= kinds


def of(calls: list[DemoCall], procedure: str) -> int:
    """The first call of a procedure that went well."""
    return next(
        at for at, it in enumerate(calls) if it.procedure == procedure and it.answer is not None and it.answer.kind == "ok"
    )


def _lost(site: Site, calls: list[DemoCall], procedure: str) -> None:
    """The server forgets a call that was acknowledged: the newest, so that no number shows it."""
    at = len(calls) - 1 - of(calls[::-1], procedure)
    params, answer = calls[at].params, calls[at].answer
    assert answer is not None
    key = (params["warehouse"], params.get("district"), answer.value.get("order") if procedure == "new_order" else answer.txn_id)
    if procedure == "new_order":
        for table, prefix in (("orders", "o_"), ("new_order", "no_"), ("order_line", "ol_")):
            number = "o_id" if table == "orders" else f"{prefix}o_id"
            site.state.connection.execute(
                f"DELETE FROM {table} WHERE {prefix}w_id = ?1 AND {prefix}d_id = ?2 AND {number} = ?3", key  # noqa: S608
            )  # fmt: skip
        site.state.connection.execute("UPDATE district SET d_next_o_id = ?3 WHERE d_w_id = ?1 AND d_id = ?2", key)
    else:
        site.state.connection.execute("DELETE FROM history WHERE h_txn_id = ?", (answer.txn_id,))


def _lost_order(site: Site, calls: list[DemoCall]) -> None:
    _lost(site, calls, "new_order")


def _lost_payment(site: Site, calls: list[DemoCall]) -> None:
    _lost(site, calls, "payment")


def _twice(site: Site, calls: list[DemoCall], procedure: str) -> None:
    """The server runs a call once more than anybody was told."""
    call = calls[of(calls, procedure)]
    site.apply((call.procedure, call.params))


def _order_twice(site: Site, calls: list[DemoCall]) -> None:
    _twice(site, calls, "new_order")


def _payment_twice(site: Site, calls: list[DemoCall]) -> None:
    _twice(site, calls, "payment")


def _delivery_twice(site: Site, calls: list[DemoCall]) -> None:
    _twice(site, calls, "new_order")
    answered(site, [call := dataclasses.replace(calls[of(calls, "new_order")])])
    calls.append(call)
    site.call("delivery", warehouse=call.params["warehouse"], carrier=1)


def _other_sum(site: Site, calls: list[DemoCall]) -> None:
    site.state.connection.execute("UPDATE order_line SET ol_amount = ol_amount + 1 WHERE ol_o_id = 6")


def _other_carrier(site: Site, calls: list[DemoCall]) -> None:
    site.state.connection.execute("UPDATE orders SET o_carrier_id = o_carrier_id % 10 + 1 WHERE o_id = 4")


def _swapped_numbers(site: Site, calls: list[DemoCall]) -> None:
    call = calls[of(calls, "new_order")]
    assert call.answer is not None
    call.answer = dataclasses.replace(call.answer, value={**call.answer.value, "order": call.answer.value["order"] + 1})


def _rolled_back_for_nothing(site: Site, calls: list[DemoCall]) -> None:
    call = calls[of(calls, "new_order")]
    assert call.answer is not None
    call.answer = dataclasses.replace(call.answer, kind="aborted", value="item_not_found")


def _unbalanced(site: Site, calls: list[DemoCall]) -> None:
    site.state.connection.execute("UPDATE customer SET c_balance = c_balance - 1 WHERE c_id = 2")


@pytest.mark.parametrize(
    ("damage", "finds"),
    [
        (_lost_order, "is missing: new_order"),
        (_lost_payment, "every acknowledged payment"),
        (_order_twice, "no answer named"),
        (_payment_twice, "which no answer named"),
        (_delivery_twice, "were sent, but no answer named them"),
        (_other_sum, "every acknowledged order"),
        (_other_carrier, "has carrier"),
        (_swapped_numbers, "by its transaction it is order"),
        (_rolled_back_for_nothing, "were rolled back"),
        (_unbalanced, "3.3.2.10"),
    ],
)
def test_one_wrong_row_or_answer_refutes_the_run(
    run: tuple[Tpcc, Site, list[DemoCall]], damage: Callable[[Site, list[DemoCall]], None], finds: str
) -> None:
    """A call that was lost, done twice or answered wrongly is found, and the difference says which."""
    work, site, calls = run
    damage(site, calls)
    found = differences(work, site, calls)
    assert any(finds in difference for difference in found), found


def test_what_the_server_shows_is_read_in_pages(run: tuple[Tpcc, Site, list[DemoCall]]) -> None:
    """All rows are read although a page holds seven."""
    work, site, _ = run
    seen: TpccState = work.read_state(Shown(site))
    assert sum(map(len, seen.orders.values())) == site.rows("SELECT count(*) FROM orders")[0][0]
    assert sum(map(len, seen.history.values())) == site.rows("SELECT count(*) FROM history")[0][0]
