"""The demo with TPC-C: its calls, what it looks at, and its proof.

There is no second TPC-C in plain Python here. What was acknowledged is looked for in the rows, one by one: every order under the
number that its customer was answered, with its lines and its sum; every payment in the history under its transaction id; every
delivery in the orders that it sent. And nothing else may be there. The consistency conditions of clause 3.3.2 tie the other
columns to these rows. A lost call leaves a row missing, a doubled one a row too many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.cli.demo.proof import DemoCall, View, answer_text, describe, in_order, keyed

WAREHOUSES: Final = 8
CUSTOMERS: Final = 30  # of a district
ITEMS: Final = 500
PAGE_ROWS: Final = 5_000  # of one query (query_rows_max)
READS: Final = ("order_status", "stock_level")

ORDERS_SQL: Final = """
    SELECT o_id, o_c_id, o_carrier_id, o_ol_cnt,
           (SELECT sum(ol_amount) FROM order_line WHERE ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id)
    FROM orders WHERE o_w_id = ?1 AND o_d_id = ?2 AND o_id > ?3 ORDER BY o_id LIMIT ?4"""
HISTORY_SQL: Final = """
    SELECT h_txn_id, h_number, h_w_id, h_d_id, h_c_w_id, h_c_d_id, h_c_id, h_amount
    FROM history WHERE h_w_id = ?1 AND (h_txn_id, h_number) > (?2, ?3) ORDER BY h_txn_id, h_number LIMIT ?4"""

Place = tuple[int, int]  # warehouse, district


@dataclass(frozen=True, slots=True)
class OrderRow:
    """A row of `orders`, with the sum of its lines."""

    customer: int
    carrier: int | None
    lines: int
    amount: int


@dataclass(frozen=True, slots=True)
class TpccState:
    """What the server shows when the load is over."""

    orders: Mapping[Place, Mapping[int, OrderRow]]  # by number
    history: Mapping[int, Sequence[Sequence[int]]]  # transaction id -> rows after it
    violations: Sequence[str]


class Tpcc:
    """See `demo_proof.Work`."""

    application: str = "procedures.samples.tpcc:db"

    def __init__(self, *, calls: int, partitions: int, seed: int) -> None:
        from cmdlog.node.slot_map import SlotMap
        from procedures.samples import tpcc

        self.population = tpcc.Population(warehouses=WAREHOUSES, customers=CUSTOMERS, items=ITEMS)
        slots, delivery = SlotMap(partitions), tpcc.db.procedures["delivery"]
        tally = tpcc.MixTally()
        self.loading: Sequence[DemoCall] = keyed(f"demo-{seed}-load", tpcc.loader(self.population))
        work = tpcc.workload(
            seed,
            calls=calls,
            population=self.population,
            partition_of=lambda warehouse: slots.partition_of(delivery, [warehouse, 1]),
            tally=tally,
        )
        self.load: Sequence[DemoCall] = keyed(f"demo-{seed}", work, reads=READS)
        self.loaded = f"{WAREHOUSES} warehouses with {CUSTOMERS * self.population.districts} customers each"
        self.notes: Sequence[str] = [
            f"remote warehouses on the call's own partition: {tally.lines_remote} order lines, {tally.payments_remote} payments",
            f"made local, since theirs is another: {tally.lines_left_out} order lines, {tally.payments_left_out} payments",
        ]

    def read_state(self, view: View) -> TpccState:
        from procedures.samples.tpcc import checks

        warehouses = range(1, WAREHOUSES + 1)
        history: dict[int, list[Sequence[int]]] = defaultdict(list)
        for warehouse in warehouses:
            for txn_id, _, *row in _pages(view, HISTORY_SQL, (warehouse,), key=2):
                history[txn_id].append(row)
        orders = {
            (warehouse, district): {
                number: OrderRow(customer, carrier, lines, amount)
                for number, customer, carrier, lines, amount in _pages(view, ORDERS_SQL, (warehouse, district), key=1)
            }
            for warehouse in warehouses
            for district in range(1, self.population.districts + 1)
        }
        return TpccState(orders, history, list(checks.violations(view.rows, warehouses)))

    def proofs(self, calls: Sequence[DemoCall], seen: TpccState) -> Iterator[tuple[str, Iterator[str]]]:
        population = self.population
        yield "new-orders with an unused item, and no other call, were rolled back", _refusals(calls, population.items)
        yield (
            "every acknowledged order is there once, in the order of the transactions",
            _orders(calls, seen, population.customers),
        )
        yield "every acknowledged payment is there once", _payments(calls, seen)
        yield "every acknowledged delivery sent its orders, once each", _deliveries(calls, seen, population.delivered)
        yield "the consistency conditions 3.3.2.1 to 3.3.2.12 of TPC-C hold", iter(seen.violations)


def _pages(view: View, sql: str, where: Sequence[int], *, key: int) -> Iterator[Sequence[Any]]:
    """All rows, page by page after the first `key` columns of the last one."""
    after: Sequence[Any] = (-1,) * key
    while rows := view.rows(sql, (*where, *after, PAGE_ROWS)):
        yield from rows
        after = rows[-1][:key]


def _refusals(calls: Sequence[DemoCall], items: int) -> Iterator[str]:
    for call in calls:
        answer = call.answer
        if answer is None:
            continue
        unused = any(item > items for item, _, _ in call.params.get("lines", ()))
        if (answer.kind, answer.value if unused else None) != (("aborted", "item_not_found") if unused else ("ok", None)):
            yield f"{describe(call)} got the answer {answer_text(answer)}"


def _done(calls: Sequence[DemoCall], procedure: str) -> Iterator[tuple[DemoCall, Any]]:
    """Calls with a result, and that, in the order of their transactions."""
    for call in in_order(calls):
        if call.procedure == procedure and call.answer is not None and call.answer.kind == "ok":
            yield call, call.answer.value


def _orders(calls: Sequence[DemoCall], seen: TpccState, loaded: int) -> Iterator[str]:
    following: dict[Place, int] = defaultdict(lambda: loaded + 1)
    for call, value in _done(calls, "new_order"):
        place, number = (call.params["warehouse"], call.params["district"]), value["order"]
        if number != following[place]:
            yield f"{describe(call)} got order number {number}; by its transaction it is order {following[place]}"
        following[place] = number + 1
        found = seen.orders[place].get(number)
        wanted = (call.params["customer"], len(call.params["lines"]), sum(line["amount"] for line in value["lines"]))
        if found is None:
            yield f"order {number} of {place} is missing: {describe(call)}"
        elif (found.customer, found.lines, found.amount) != wanted:
            yield f"order {number} of {place} is {found}; {describe(call)}"
    for place, orders in sorted(seen.orders.items()):
        unknown = [number for number in orders if number >= following[place]]
        if unknown or len(orders) != following[place] - 1:
            yield f"district {place} has {len(orders)} orders instead of {following[place] - 1}; no answer named {unknown[:5]}"


def _payments(calls: Sequence[DemoCall], seen: TpccState) -> Iterator[str]:
    loading = {call.answer.txn_id for call, _ in _done(calls, "load_customers") if call.answer is not None}
    paid: set[int] = set()
    for call, value in _done(calls, "payment"):
        txn_id = call.answer.txn_id if call.answer is not None else 0
        paid.add(txn_id)
        params = call.params
        wanted = [params[name] for name in ("warehouse", "district", "customer_warehouse", "customer_district")]
        if [list(row) for row in seen.history.get(txn_id, ())] != [[*wanted, value["customer"], params["amount"]]]:
            yield f"the history has {seen.history.get(txn_id)} under {txn_id}; {describe(call)}"
    for txn_id in sorted(seen.history.keys() - paid - loading):
        yield f"the history has {seen.history[txn_id]} under {txn_id}, which no answer named"


def _deliveries(calls: Sequence[DemoCall], seen: TpccState, loaded: int) -> Iterator[str]:
    sent: dict[Place, int] = defaultdict(lambda: loaded)  # the last order that was sent
    for call, value in _done(calls, "delivery"):
        for district, number in value:
            place = (call.params["warehouse"], district)
            sent[place] += 1
            if number != sent[place]:
                yield f"{describe(call)} sent order {number} of {place}; the oldest was {sent[place]}"
            carrier = seen.orders[place][number].carrier if number in seen.orders[place] else None
            if carrier != call.params["carrier"]:
                yield f"order {number} of {place} has carrier {carrier}; {describe(call)}"
    for place, orders in sorted(seen.orders.items()):
        unknown = _without(orders, sent[place])
        if unknown:
            yield f"orders {unknown[:5]} of {place} were sent, but no answer named them"


def _without(orders: Mapping[int, OrderRow], last: int) -> list[int]:
    """Orders after the last one that was sent, which have a carrier nevertheless."""
    behind: Iterable[int] = (number for number in orders if number > last)
    return [number for number in behind if orders[number].carrier is not None]
