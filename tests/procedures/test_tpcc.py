"""TPC-C: the population, each transaction after its clause, the mix, and consistency conditions that can fail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

import cmdlog
from procedures.bundle import capture_bundle, load_bundle
from procedures.checks.check import check
from procedures.declaration.hash_slots import SLOTS, slot_of
from procedures.execution.executor import Status
from procedures.samples import tpcc
from procedures.samples.tpcc import checks, draws
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


def test_the_default_population_is_the_specifications() -> None:
    """Ten districts of 3,000 customers and 100,000 items, of whose orders 2,100 are delivered (clause 4.3.3.1)."""
    population = tpcc.Population()
    assert (population.districts, population.customers, population.items, population.delivered) == (10, 3_000, 100_000, 2_100)
    calls = list(tpcc.loader(population))
    rows = Counter[str]()
    for name, params in calls:
        rows[name] += params.get("count", 1)
    assert rows == {
        "load_items": 100_000,
        "load_warehouse": 1,
        "load_stock": 100_000,
        "load_customers": 30_000,
        "load_orders": 30_000,
    }
    assert len(orjson.dumps(calls)) < 100_000  # the log of a warehouse of 100 MB


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


def test_loading_draws_the_same_rows_from_the_same_seed(make_site: MakeSite) -> None:
    """Two loads agree in every row, and a load with another seed does not."""
    dumps = []
    for seed in (1, 1, 2):
        site = make_site(tpcc.db)
        for call in tpcc.loader(tpcc.Population(1, 1, 5, 5, seed)):
            site.apply(call)
        dumps.append([row for row in site.dump() if not str(row[0]).startswith("_cmdlog_")])
    assert dumps[0] == dumps[1] != dumps[2]


def test_loading_twice_fails_instead_of_doubling(site: Site) -> None:
    """Rows that are there already fail the loading call, which leaves nothing behind."""
    before = site.rows("SELECT count(*) FROM stock")
    again = [call for call in tpcc.loader(TINY) if call[0] == "load_stock"]
    assert [site.apply(call).statuses[0] for call in again] == [Status.FAILED] * 2
    assert site.rows("SELECT count(*) FROM stock") == before


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


def test_a_lost_and_a_doubled_payment_are_found(site: Site) -> None:
    """Conditions see a payment that is missing in one place, as a lost or doubled call would leave it."""
    ask(site, "payment", warehouse=1, district=1, customer_warehouse=1, customer_district=1, amount=500, customer=3)
    assert broken(site) == []
    site.state.connection.execute("DELETE FROM history WHERE h_amount = 500")
    assert {line.split(" ")[0] for line in broken(site)} == {"3.3.2.8", "3.3.2.9", "3.3.2.10"}


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


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([(1, 1, 1), (21, 1, 1)], "item_not_found"),
        ([(1, 1, 1), (2, 7, 1)], "no_stock"),  # a warehouse of another partition
        ([(1, 1, 1), (2, 1, 11)], "bad_order"),
        ([(1, 1, 1), (2, 1, -4)], "bad_order"),
        ([], "bad_order"),
        ([(1, 1, 1)] * 16, "bad_order"),
    ],
)
def test_a_refused_order_leaves_no_trace(site: Site, lines: list[tuple[int, int, int]], code: str) -> None:
    """An unused item as the last line rolls back all that was done before it; so does a line that cannot be had."""
    before = site.rows("SELECT * FROM stock"), site.rows("SELECT * FROM district"), site.rows("SELECT count(*) FROM orders")
    status, got = order(site, *lines)
    assert (status, got["code"]) == (Status.ABORTED, code)
    assert before == (
        site.rows("SELECT * FROM stock"),
        site.rows("SELECT * FROM district"),
        site.rows("SELECT count(*) FROM orders"),
    )
    assert order(site, (1, 1, 1))[1]["order"] == 11


def test_brand_is_told_by_both_originals(site: Site) -> None:
    """B when the item's and the stock's data hold ORIGINAL, else G (clause 2.4.2.2)."""
    site.state.connection.execute("UPDATE item SET i_data = CASE i_id WHEN 3 THEN 'plain' ELSE 'xORIGINALx' END")
    site.state.connection.execute("UPDATE stock SET s_data = CASE s_i_id WHEN 2 THEN 'plain' ELSE 'ORIGINAL' END")
    _, got = order(site, (1, 1, 1), (2, 1, 1), (3, 1, 1))
    assert [line["brand"] for line in got["lines"]] == ["B", "G", "G"]


def test_payment_by_name_takes_the_middle_customer(site: Site) -> None:
    """Of four customers with one last name the second by first name pays, of three the second (clause 2.5.2.2)."""
    for number, first in ((1, "delta"), (2, "alpha"), (3, "charlie"), (4, "bravo")):
        site.state.connection.execute(
            "UPDATE customer SET c_last = 'SAME', c_first = ? WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = ?", (first, number)
        )
    pay = {"warehouse": 1, "district": 1, "customer_warehouse": 1, "customer_district": 1, "amount": 100, "last": "SAME"}
    assert ask(site, "payment", **pay)[1]["customer"] == 4
    site.state.connection.execute("UPDATE customer SET c_last = 'OTHER' WHERE c_w_id = 1 AND c_d_id = 1 AND c_id = 2")
    assert ask(site, "payment", **pay)[1]["customer"] == 3
    assert ask(site, "order_status", warehouse=1, district=1, last="SAME")[1]["customer"] == 3


def test_payment_is_noted_everywhere_and_in_bad_credit(site: Site) -> None:
    """Warehouse, district, customer and history grow by the amount; bad credit is told who paid, in 500 characters at most."""
    site.state.connection.execute("UPDATE customer SET c_credit = 'BC', c_data = ? WHERE c_id = 3", ("x" * 500,))
    pay = {"warehouse": 1, "district": 1, "customer_warehouse": 2, "customer_district": 2, "amount": 12_345, "customer": 3}
    status, got = ask(site, "payment", **pay)
    assert (status, got["balance"], got["credit"]) == (Status.OK, -1000 - 12_345, "BC")
    assert got["data"].startswith("3 2 2 1 1 12345|xxx")
    assert len(got["data"]) == 200
    assert site.rows("SELECT length(c_data) FROM customer WHERE c_w_id = 2 AND c_d_id = 2 AND c_id = 3") == [(500,)]
    assert site.rows("SELECT w_ytd FROM warehouse") == [(20_000 + 12_345,), (20_000,)]
    noted = site.rows("SELECT h_w_id, h_d_id, h_c_w_id, h_c_d_id, h_c_id, h_data FROM history WHERE h_amount = 12345")
    assert [row[:5] for row in noted] == [(1, 1, 2, 2, 3)]
    assert noted[0][5] == "    ".join(
        site.rows(f"SELECT {what}_name FROM {table} WHERE {key}")[0][0]  # noqa: S608
        for what, table, key in (("w", "warehouse", "w_id = 1"), ("d", "district", "d_w_id = 1 AND d_id = 1"))
    )
    assert broken(site) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"customer": 99}, "no_customer"),
        ({"customer": None, "last": "NOBODY"}, "no_customer"),
        ({"customer_warehouse": 9}, "no_customer"),
        ({"district": 9}, "no_district"),
        ({"customer": None}, "bad_customer"),
        ({"last": "BARBARBAR"}, "bad_customer"),
        ({"amount": 0}, "bad_amount"),
    ],
)
def test_a_refused_payment_leaves_no_trace(site: Site, change: dict[str, Any], code: str) -> None:
    """Whoever does not exist, or lives on another partition, has nothing paid."""
    pay = {"warehouse": 1, "district": 1, "customer_warehouse": 1, "customer_district": 1, "amount": 5, "customer": 1, **change}
    status, got = ask(site, "payment", **pay)
    assert (status, got["code"]) == (Status.ABORTED, code)
    assert site.rows("SELECT DISTINCT w_ytd FROM warehouse") == [(20_000,)]
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


def test_order_status_shows_the_last_order(site: Site) -> None:
    """The newest order of the customer with its lines, and the balance; a customer without one has none."""
    sold = order(site, (5, 1, 2), (6, 2, 3), customer=4)[1]
    status, got = ask(site, "order_status", warehouse=1, district=1, customer=4)
    assert (status, got["order"], got["entered"], got["carrier"], got["balance"]) == (0, 11, sold["entered"], None, -1000)
    assert [(line["item"], line["supply_warehouse"], line["quantity"], line["delivered"]) for line in got["lines"]] == [
        (5, 1, 2, None), (6, 2, 3, None),
    ]  # fmt: skip
    site.state.connection.execute("DELETE FROM orders WHERE o_c_id = 4")
    assert ask(site, "order_status", warehouse=1, district=1, customer=4)[1]["order"] is None
    assert ask(site, "order_status", warehouse=1, district=1, customer=99)[1]["code"] == "no_customer"


def test_stock_level_counts_items_of_recent_orders(site: Site) -> None:
    """Items of the last twenty orders, each once, whose stock is below the threshold."""
    for item in range(1, 21):
        site.state.connection.execute("UPDATE stock SET s_quantity = ? WHERE s_i_id = ?", (item + 50, item))
    for item in (1, 2, 2, 9):
        order(site, (item, 1, 1))
    for _ in range(17):
        order(site, (20, 1, 1))
    # The first of these orders is the 21st from the end; items lose one for each order.
    assert ask(site, "stock_level", warehouse=1, district=1, threshold=55) == (Status.OK, 2)
    assert ask(site, "stock_level", warehouse=1, district=1, threshold=60) == (Status.OK, 3)
    assert ask(site, "stock_level", warehouse=1, district=9, threshold=60)[1]["code"] == "no_district"


def test_the_mix_has_the_specifications_shares() -> None:
    """Kinds, names, remote warehouses and unused items come about as often as clauses 2.4.1, 2.5.1 and 5.2.3 say."""
    population = tpcc.Population(warehouses=10)
    tally = tpcc.MixTally()
    work = list(tpcc.workload(1, calls=20_000, population=population, tally=tally))
    kinds = Counter(name for name, _ in work)
    for name, share in zip(("new_order", "payment", "order_status", "delivery", "stock_level"), (45, 43, 4, 4, 4), strict=True):
        assert kinds[name] == pytest.approx(200 * share, rel=0.12)
    assert tally.lines_remote == pytest.approx(tally.lines / 100, rel=0.25)
    assert tally.payments_remote == pytest.approx(tally.payments * 0.15, rel=0.1)
    assert tally.rolled_back == pytest.approx(kinds["new_order"] / 100, rel=0.35)
    assert sum("last" in params for name, params in work if name == "payment") == pytest.approx(kinds["payment"] * 0.6, rel=0.05)
    assert min(len(params["lines"]) for name, params in work if name == "new_order") >= 5
    assert tally.lines_left_out == tally.payments_left_out == 0


def test_the_mix_never_leaves_the_partition_and_counts_what_it_leaves_out() -> None:
    """With warehouses on several partitions the remote ones stay on the home partition; the others are counted."""
    population, tally, all_together = tpcc.Population(warehouses=8), tpcc.MixTally(), tpcc.MixTally()
    work = list(tpcc.workload(5, calls=5_000, population=population, partition_of=lambda w: w % 4, tally=tally))
    for name, params in work:
        others = [supply for _, supply, _ in params["lines"]] if name == "new_order" else [params.get("customer_warehouse")]
        assert all(other is None or other % 4 == params["warehouse"] % 4 for other in others)
    list(tpcc.workload(5, calls=5_000, population=population, tally=all_together))
    assert tally.payments_left_out > tally.payments_remote > 0
    # One of the seven other warehouses lives on the home partition.
    assert tally.payments_remote == pytest.approx((tally.payments_left_out + tally.payments_remote) / 7, rel=0.35)
    assert tally.lines_left_out + tally.lines_remote == pytest.approx(tally.lines / 100, rel=0.25)
    assert all_together.lines_left_out == all_together.payments_left_out == 0


def test_workload_repeats_by_seed_and_stays_in_a_small_population() -> None:
    """The same seed gives the same calls; customers, names and items exist, but for the unused item."""
    work = list(tpcc.workload(1, calls=500, population=TINY))
    assert work == list(tpcc.workload(1, calls=500, population=TINY)) != list(tpcc.workload(2, calls=500, population=TINY))
    names = {draws.last_name(number) for number in range(TINY.customers)}
    for _, params in work:
        assert params.get("customer") is None or 1 <= params["customer"] <= TINY.customers
        assert params.get("last") is None or params["last"] in names
        assert all(1 <= item <= TINY.items + 1 for item, _, _ in params.get("lines", ()))


def test_draws_follow_their_clauses() -> None:
    """Last names have three syllables, NURand prefers some numbers, and the two constants of names keep their distance."""
    assert draws.last_name(371) == "PRICALLYOUGHT"
    assert len({draws.last_name(number) for number in range(1000)}) == 1000
    chance = random.Random(1)
    drawn = Counter(draws.nurand(chance, a=1023, c=17, low=1, high=3000) for _ in range(30_000))
    assert min(drawn) == 1
    assert max(drawn) == 3000
    assert max(drawn.values()) > 4 * 30_000 / 3000
    for seed in range(200):
        load, run = draws.name_constants(seed)
        assert 0 <= load < run <= 255
        assert 65 <= run - load <= 119
        assert run - load not in (96, 112)
    data = [draws.data(chance) for _ in range(5_000)]
    assert sum("ORIGINAL" in text for text in data) == pytest.approx(500, rel=0.2)
    assert {len(text) for text in data} == set(range(26, 51))


def test_the_bundle_holds_every_module_that_runs() -> None:
    """A replay finds schema, transactions and loader in the bundle, and they make the same statements."""
    bundle = capture_bundle(tpcc.db, "procedures.samples.tpcc:db")
    assert {name.rpartition(".")[2] for name in bundle.modules} == {
        "tpcc", "draws", "mix", "population", "schema", "transactions",
    }  # fmt: skip
    loaded = load_bundle(bundle)
    assert [procedure.name for procedure in loaded.procedure_list] == [procedure.name for procedure in tpcc.db.procedure_list]
    assert loaded.schema_statements() == tpcc.db.schema_statements()


@pytest.mark.slow
def test_tpcc_is_deterministic() -> None:
    """`cmdlog check` finds nothing: no lint, and the same digests under two hash seeds, time zones and row orders."""
    assert check("procedures.samples.tpcc:db", calls=300) == []


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[cmdlog.Embedded]:
    """Three warehouses on two partitions, loaded, in a node of this process."""
    small = {"segment_bytes": 1 << 20, "segments": 8, "log_reserve_bytes": 64 << 10, "call_bytes_max": 100_000}
    with cmdlog.open(tmp_path / "data", tpcc.db, partitions=2, **small) as node:
        for name, params in tpcc.loader(tpcc.Population(3, 2, 10, 20)):
            node.call(name, **params)
        yield node


@pytest.mark.slow
def test_conditions_hold_over_partitions_through_the_embedded_query(embedded: cmdlog.Embedded) -> None:
    """A mix whose remote warehouses stay on their partition never meets one that is elsewhere, and all conditions hold."""
    tally = tpcc.MixTally()
    where = {warehouse: slot_of(warehouse) * 2 // SLOTS for warehouse in (1, 2, 3)}
    assert len(set(where.values())) == 2
    refused = Counter[str]()
    for name, params in tpcc.workload(
        9, calls=300, population=tpcc.Population(3, 2, 10, 20), partition_of=where.__getitem__, tally=tally
    ):
        try:
            embedded.call(name, **params)
        except cmdlog.Aborted as abort:
            refused[abort.abort_code] += 1
    assert refused == ({"item_not_found": tally.rolled_back} if tally.rolled_back else {})
    assert tally.payments_left_out > 0
    assert list(checks.violations(lambda sql, params: embedded.query(sql, tuple(params)).rows, (1, 2, 3))) == []
