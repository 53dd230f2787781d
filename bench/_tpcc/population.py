"""The initial population, clause 4.3.3: what it is, the procedures that make it, and the calls that load it.

The parameters of a loading call say which rows; the rows themselves are drawn inside the procedure, by a generator that is seeded
from them. So the log of a warehouse of 100 MB is some kilobytes, and a replay loads the same rows again.

A load that was interrupted is repeated under the same idempotency keys; without keys, rows that are there already fail the call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import insert

from bench._tpcc import draws, schema
from bench._tpcc.schema import DISTRICTS_MAX, db
from procedures import Transaction

ROWS_MAX = 10_000  # of one loading call: it must end well within call_timeout_s
ITEMS_A_CALL, CUSTOMERS_A_CALL, ORDERS_A_CALL = 2_000, 500, 200  # each some 20 to 60 ms
FIRST_PAYMENT = 1_000  # cents that every customer has paid
CREDIT_LIMIT = 5_000_000


@dataclass(frozen=True, slots=True)
class Population:
    """How much there is; the default is the specification's, for one warehouse."""

    warehouses: int = 1
    districts: int = 10  # of a warehouse
    customers: int = 3_000  # of a district, each with one order
    items: int = 100_000  # sold by every warehouse
    seed: int = 1

    @property
    def delivered(self) -> int:
        """Orders of a district that are delivered from the start: 2,100 of 3,000."""
        return delivered_of(self.customers)


SMALL = Population(warehouses=2, districts=3, customers=20, items=60)


def delivered_of(customers: int) -> int:
    return customers * 7 // 10


ADD_ITEM = insert(schema.item)
ADD_WAREHOUSE = insert(schema.warehouse)
ADD_DISTRICT = insert(schema.district)
ADD_STOCK = insert(schema.stock)
ADD_CUSTOMER = insert(schema.customer)
ADD_HISTORY = insert(schema.history)
ADD_ORDER = insert(schema.orders)
ADD_LINE = insert(schema.order_line)
ADD_NEW_ORDER = insert(schema.new_order)


@db.procedure(partition_by=None)
def load_items(tx: Transaction, population: Population, first: int, count: int) -> int:
    """Items `first` up to `first + count`, on every partition."""
    _check(tx, population, count=count)
    chance = random.Random(f"items {population.seed} {first}")
    for number in range(first, first + count):
        tx.execute(
            ADD_ITEM,
            i_id=number,
            i_im_id=chance.randint(1, 10_000),
            i_name=draws.text(chance, 14, 24),
            i_price=chance.randint(100, 10_000),
            i_data=draws.data(chance),
        )
    return count


@db.procedure(partition_by="warehouse")
def load_warehouse(tx: Transaction, warehouse: int, population: Population) -> None:
    """The warehouse and its districts. What they took in is what their customers have paid."""
    _check(tx, population, count=1)
    chance = random.Random(f"warehouse {population.seed} {warehouse}")
    taken = population.customers * FIRST_PAYMENT
    address = {f"w_{name}": value for name, value in _address(chance).items()}
    name = draws.text(chance, 6, 10)
    tax = chance.randint(0, 2_000)
    tx.execute(ADD_WAREHOUSE, w_id=warehouse, w_name=name, w_tax=tax, w_ytd=taken * population.districts, **address)
    for number in range(1, population.districts + 1):
        address = {f"d_{name}": value for name, value in _address(chance).items()}
        tx.execute(
            ADD_DISTRICT,
            d_w_id=warehouse,
            d_id=number,
            d_name=draws.text(chance, 6, 10),
            d_tax=chance.randint(0, 2_000),
            d_ytd=taken,
            d_next_o_id=population.customers + 1,
            **address,
        )


@db.procedure(partition_by="warehouse")
def load_stock(tx: Transaction, warehouse: int, population: Population, first: int, count: int) -> int:
    """Stock of the items `first` up to `first + count`."""
    _check(tx, population, count=count)
    chance = random.Random(f"stock {population.seed} {warehouse} {first}")
    for number in range(first, first + count):
        drawn = draws.text(chance, 24 * DISTRICTS_MAX, 24 * DISTRICTS_MAX)
        tx.execute(
            ADD_STOCK,
            s_w_id=warehouse,
            s_i_id=number,
            s_quantity=chance.randint(10, 100),
            s_ytd=0,
            s_order_cnt=0,
            s_remote_cnt=0,
            s_data=draws.data(chance),
            **{f"s_dist_{at + 1:02}": drawn[24 * at : 24 * at + 24] for at in range(DISTRICTS_MAX)},
        )
    return count


@db.procedure(partition_by="warehouse")
def load_customers(  # noqa: PLR0917 - the log holds parameters by position
    tx: Transaction, warehouse: int, district: int, population: Population, first: int, count: int
) -> int:
    """Customers `first` up to `first + count` of a district, each with the payment that it starts with."""
    _check(tx, population, count=count)
    chance = random.Random(f"customers {population.seed} {warehouse} {district} {first}")
    constant, _ = draws.name_constants(population.seed)
    now, txn_id = tx.now, tx.txn_id
    for number in range(first, first + count):
        # The first thousand bear one name each, so that every name is there.
        named = number - 1 if number <= draws.NAMES else draws.nurand(chance, a=draws.A_NAME, c=constant, low=0, high=999)
        tx.execute(
            ADD_CUSTOMER,
            c_w_id=warehouse,
            c_d_id=district,
            c_id=number,
            c_first=draws.text(chance, 8, 16),
            c_middle="OE",
            c_last=draws.last_name(named),
            c_phone=draws.digits(chance, 16),
            c_since=now,
            c_credit="GC" if chance.randrange(10) else "BC",
            c_credit_lim=CREDIT_LIMIT,
            c_discount=chance.randint(0, 5_000),
            c_balance=-FIRST_PAYMENT,
            c_ytd_payment=FIRST_PAYMENT,
            c_payment_cnt=1,
            c_delivery_cnt=0,
            c_data=draws.text(chance, 300, 500),
            **{f"c_{name}": value for name, value in _address(chance).items()},
        )
        tx.execute(
            ADD_HISTORY,
            h_txn_id=txn_id,
            h_number=number,
            h_c_id=number,
            h_c_d_id=district,
            h_c_w_id=warehouse,
            h_d_id=district,
            h_w_id=warehouse,
            h_date=now,
            h_amount=FIRST_PAYMENT,
            h_data=draws.text(chance, 12, 24),
        )
    return count


@db.procedure(partition_by="warehouse")
def load_orders(  # noqa: PLR0917 - the log holds parameters by position
    tx: Transaction, warehouse: int, district: int, population: Population, first: int, count: int
) -> int:
    """Orders `first` up to `first + count` of a district: one of each customer, in an order drawn for the whole district."""
    _check(tx, population, count=count)
    customers = list(range(1, population.customers + 1))
    random.Random(f"customers of orders {population.seed} {warehouse} {district}").shuffle(customers)
    chance = random.Random(f"orders {population.seed} {warehouse} {district} {first}")
    now = tx.now
    for number in range(first, first + count):
        delivered = number <= population.delivered
        lines = chance.randint(5, 15)
        key = {"o_w_id": warehouse, "o_d_id": district, "o_id": number}
        carrier = chance.randint(1, 10) if delivered else None
        tx.execute(
            ADD_ORDER, o_c_id=customers[number - 1], o_entry_d=now, o_carrier_id=carrier, o_ol_cnt=lines, o_all_local=1, **key
        )
        if not delivered:
            tx.execute(ADD_NEW_ORDER, no_w_id=warehouse, no_d_id=district, no_o_id=number)
        for line in range(1, lines + 1):
            tx.execute(
                ADD_LINE,
                ol_w_id=warehouse,
                ol_d_id=district,
                ol_o_id=number,
                ol_number=line,
                ol_i_id=chance.randint(1, population.items),
                ol_supply_w_id=warehouse,
                ol_delivery_d=now if delivered else None,
                ol_quantity=5,
                ol_amount=0 if delivered else chance.randint(1, 999_999),
                ol_dist_info=draws.text(chance, 24, 24),
            )
    return count


def _check(tx: Transaction, population: Population, *, count: int) -> None:
    if not 0 < count <= ROWS_MAX:
        tx.abort("bad_count", f"between 1 and {ROWS_MAX} rows a call")
    if not 0 < population.districts <= DISTRICTS_MAX:
        tx.abort("bad_population", f"between 1 and {DISTRICTS_MAX} districts a warehouse")


def _address(chance: random.Random) -> dict[str, str]:
    return {
        "street_1": draws.text(chance, 10, 20),
        "street_2": draws.text(chance, 10, 20),
        "city": draws.text(chance, 10, 20),
        "state": draws.state(chance),
        "zip": draws.zip_code(chance),
    }


Call = tuple[str, dict[str, Any]]


def loader(population: Population = SMALL) -> Iterator[Call]:
    """Calls that fill an empty database; without an argument the small population that `cmdlog check` runs."""
    told = asdict(population)
    for first, count in _chunks(population.items, ITEMS_A_CALL):
        yield "load_items", {"population": told, "first": first, "count": count}
    for warehouse in range(1, population.warehouses + 1):
        yield "load_warehouse", {"warehouse": warehouse, "population": told}
        for first, count in _chunks(population.items, ITEMS_A_CALL):
            yield "load_stock", {"warehouse": warehouse, "population": told, "first": first, "count": count}
        for district in range(1, population.districts + 1):
            of = {"warehouse": warehouse, "district": district, "population": told}
            for first, count in _chunks(population.customers, CUSTOMERS_A_CALL):
                yield "load_customers", {**of, "first": first, "count": count}
            for first, count in _chunks(population.customers, ORDERS_A_CALL):
                yield "load_orders", {**of, "first": first, "count": count}


def _chunks(total: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, count), numbered from 1."""
    return ((first, min(size, total + 1 - first)) for first in range(1, total + 1, size))
