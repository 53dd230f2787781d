"""TPC-C: the population, each transaction after its clause, the mix, and consistency conditions that can fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import orjson
import pytest

from bench import _tpcc as tpcc
from bench._tpcc import checks, draws
from procedures.checks.check import check
from procedures.execution.executor import Status
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]
TINY = tpcc.Population(warehouses=2, districts=2, customers=10, items=20)


def ask(site: Site, name: str, /, **params: Any) -> tuple[int, Any]:
    """(status, decoded body) of a call, or of a read-only one."""
    if not site.db.procedures[name].read_only:
        return site.call(name, **params)
    _, [(status, body)] = site.executor.read([(site.numbers[name], site.db.procedures[name].bind(params))], catalog=1)
    return int(status), orjson.loads(body)


def broken(site: Site, warehouses: Sequence[int] = (1, 2)) -> list[str]:
    """What the consistency conditions find."""
    return list(checks.violations(lambda sql, params: site.state.connection.execute(sql, tuple(params)).fetchall(), warehouses))


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """Two warehouses on one partition."""
    site = make_site(tpcc.db)
    for call in tpcc.loader(TINY):
        assert site.apply(call).statuses[0] == Status.OK
    return site


def order(site: Site, *lines: tuple[int, int, int], customer: int = 1) -> tuple[int, Any]:
    """A new-order in district 1 of warehouse 1."""
    return ask(site, "new_order", warehouse=1, district=1, customer=customer, lines=[list(line) for line in lines])


def test_a_loaded_population_is_consistent_and_complete(site: Site) -> None:
    """Every table has the rows that clause 4.3.3.1 asks for at this scale, and all conditions hold."""
    assert broken(site) == []
    counted = {name: site.rows(f"SELECT count(*) FROM {name}")[0][0] for name in tpcc.db.tables}  # noqa: S608
    assert {name: count for name, count in counted.items() if name != "order_line"} == {
        "warehouse": 2, "district": 4, "customer": 40, "history": 40, "new_order": 12, "orders": 40, "item": 20, "stock": 40,
    }  # fmt: skip
    assert site.rows("SELECT min(o_ol_cnt) >= 5, max(o_ol_cnt) <= 15 FROM orders") == [(1, 1)]
    assert site.rows("SELECT count(DISTINCT o_c_id) FROM orders WHERE o_w_id = 1 AND o_d_id = 2") == [(10,)]
    assert site.rows("SELECT c_last FROM customer WHERE c_w_id = 1 AND c_d_id = 1 AND c_id <= 2 ORDER BY c_id") == [
        ("BARBARBAR",), ("BARBAROUGHT",),
    ]  # fmt: skip


@pytest.mark.parametrize("change", [{"count": 0}, {"count": 10_001}, {"population": {"districts": 11}}])
def test_loading_refuses_what_it_cannot_hold(make_site: MakeSite, change: dict[str, Any]) -> None:
    """Too many rows for one call, or more districts than a stock row knows, are aborted."""
    population = {"warehouses": 1, "districts": 1, "customers": 1, "items": 1, "seed": 1, **change.get("population", {})}
    params = {"warehouse": 1, "first": 1, "count": 1, **change, "population": population}
    assert make_site(tpcc.db).call("load_stock", **params)[0] == Status.ABORTED


def test_the_mix_keeps_every_condition(site: Site) -> None:
    """After a full mix all conditions hold; exactly the new-orders with an unused item are rolled back."""
    tally = tpcc.MixTally()
    refused = Counter[str]()
    work = list(tpcc.workload(3, calls=400, population=TINY, tally=tally))
    for first in range(0, len(work), 20):
        some = work[first : first + 20]
        for name, params in some:
            if site.db.procedures[name].read_only:
                assert ask(site, name, **params)[0] == Status.OK
        applied = site.apply(*(call for call in some if not site.db.procedures[call[0]].read_only))
        refused.update(
            orjson.loads(body)["code"] for status, body in zip(applied.statuses, applied.bodies, strict=True) if status
        )
    assert refused == {"item_not_found": tally.rolled_back}
    assert tally.rolled_back > 0
    assert tally.lines_remote > 0
    assert broken(site) == []


PLANTED = {
    "3.3.2.1": "UPDATE warehouse SET w_ytd = w_ytd + 1",
    "3.3.2.2": "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = 1 AND d_id = 2",
    "3.3.2.3": "DELETE FROM new_order WHERE no_w_id = 1 AND no_d_id = 1 AND no_o_id = 9",
    "3.3.2.4": "DELETE FROM order_line WHERE ol_w_id = 2 AND ol_d_id = 1 AND ol_o_id = 3 AND ol_number = 2",
    "3.3.2.5": "UPDATE orders SET o_carrier_id = 3 WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 10",
    "3.3.2.6": "UPDATE orders SET o_ol_cnt = o_ol_cnt + CASE o_id WHEN 1 THEN 1 ELSE -1 END WHERE o_w_id = 1 AND o_id < 3",
    "3.3.2.7": "UPDATE order_line SET ol_delivery_d = NULL WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 1 AND ol_number = 1",
    "3.3.2.8": "UPDATE history SET h_amount = h_amount - 1 WHERE h_w_id = 2 AND h_d_id = 2 AND h_c_id = 4",
    "3.3.2.9": "UPDATE district SET d_ytd = d_ytd + CASE d_id WHEN 1 THEN 7 ELSE -7 END WHERE d_w_id = 1",
    "3.3.2.10": "UPDATE customer SET c_balance = c_balance + 1 WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 5",
    "3.3.2.11": "UPDATE customer SET c_delivery_cnt = 1 WHERE c_w_id = 2 AND c_d_id = 1 AND c_id = 5",
    "3.3.2.12": "UPDATE customer SET c_ytd_payment = c_ytd_payment + 1 WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 6",
}


def test_every_condition_has_a_planted_violation() -> None:
    """The list of planted damage covers the twelve conditions."""
    assert list(PLANTED) == [condition.clause for condition in checks.CONDITIONS] == [f"3.3.2.{n}" for n in range(1, 13)]


@pytest.mark.parametrize("clause", PLANTED)
def test_a_planted_violation_is_found(site: Site, clause: str) -> None:
    """Damage to one condition is found under its clause."""
    site.state.connection.execute(PLANTED[clause])
    assert clause in {line.split(" ")[0] for line in broken(site)}


def test_new_order_takes_stock_and_counts_cents(site: Site) -> None:
    """Stock falls by the quantity, filled up by 91 below ten; amounts are exact and the total is rounded half up."""
    site.state.connection.execute("UPDATE stock SET s_quantity = 15 WHERE s_w_id = 1")
    status, got = order(site, (3, 1, 5), (4, 1, 6), (3, 2, 1))
    assert status == Status.OK
    assert got["order"] == 11
    assert [line["stock"] for line in got["lines"][:2]] == [10, 15 - 6 + 91]
    prices = dict(site.rows("SELECT i_id, i_price FROM item"))
    amounts = [prices[3] * 5, prices[4] * 6, prices[3]]
    assert [line["amount"] for line in got["lines"]] == amounts
    exact = Decimal(sum(amounts)) * (10_000 - got["discount"]) * (10_000 + got["warehouse_tax"] + got["district_tax"]) / 10**8
    assert got["total"] == exact.quantize(Decimal(1), ROUND_HALF_UP)
    assert site.rows("SELECT o_ol_cnt, o_all_local, o_carrier_id FROM orders WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 11") == [
        (3, 0, None),
    ]  # fmt: skip
    taken = "SELECT s_ytd, s_order_cnt, s_remote_cnt FROM stock WHERE s_i_id = 3 ORDER BY s_w_id"
    assert site.rows(taken) == [(5, 1, 0), (1, 1, 1)]
    info = site.rows("SELECT ol_dist_info FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 11 AND ol_number = 1")
    assert info == site.rows("SELECT s_dist_01 FROM stock WHERE s_w_id = 1 AND s_i_id = 3")
    assert broken(site) == []


def test_delivery_sends_the_oldest_order_of_each_district(site: Site) -> None:
    """Oldest first, one of each district a call, until none waits; customers are charged what was sent."""
    for waiting in (8, 9, 10):
        assert ask(site, "delivery", warehouse=1, carrier=7) == (Status.OK, [[1, waiting], [2, waiting]])
        assert broken(site) == []
    assert ask(site, "delivery", warehouse=1, carrier=7) == (Status.OK, [])
    assert site.rows("SELECT count(*) FROM orders WHERE o_w_id = 1 AND o_id > 7 AND o_carrier_id = 7") == [(6,)]
    assert site.rows("SELECT sum(c_delivery_cnt) FROM customer WHERE c_w_id = 1") == [(6,)]
    assert ask(site, "delivery", warehouse=1, carrier=11)[1]["code"] == "bad_carrier"


def test_workload_repeats_by_seed_and_stays_in_a_small_population() -> None:
    """The same seed gives the same calls; customers, names and items exist, but for the unused item."""
    work = list(tpcc.workload(1, calls=500, population=TINY))
    assert work == list(tpcc.workload(1, calls=500, population=TINY)) != list(tpcc.workload(2, calls=500, population=TINY))
    names = {draws.last_name(number) for number in range(TINY.customers)}
    for _, params in work:
        assert params.get("customer") is None or 1 <= params["customer"] <= TINY.customers
        assert params.get("last") is None or params["last"] in names
        assert all(1 <= item <= TINY.items + 1 for item, _, _ in params.get("lines", ()))


@pytest.mark.slow
def test_tpcc_is_deterministic() -> None:
    """`cmdlog check` finds nothing: no lint, and the same digests under two hash seeds, time zones and row orders."""
    assert check("bench._tpcc:db", calls=300) == []
