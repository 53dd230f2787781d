"""The five transactions of TPC-C, clauses 2.4 to 2.8.

Each runs on the partition of its home warehouse. A row of another warehouse is found if that one lives on the same partition; if
not, the call is aborted with `no_stock` or `no_customer`, and nothing is left of it.

Statements that change a row return what the specification reads before: a quarter of the statements less.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, bindparam, case, delete, distinct, func, insert, literal_column, select, update

from bench._tpcc import schema
from bench._tpcc.schema import DISTRICTS_MAX, db
from procedures import Transaction

LINES_MAX = 15  # of an order
QUANTITY_MAX = 10  # of a line
PAYMENT_MAX = 500_000
DATA_MAX = 500  # characters of c_data
RECENT_ORDERS = 20  # that stock_level looks at
_WHOLE = 10_000  # taxes and discounts are parts of it

_W, _D, _C, _I, _S = schema.warehouse.c, schema.district.c, schema.customer.c, schema.item.c, schema.stock.c
_NO, _O, _OL = schema.new_order.c, schema.orders.c, schema.order_line.c
_ONE = literal_column("1", Integer)  # as text of the statement: values that a statement holds are bound again at each run
_DISTRICT = (_D.d_w_id == bindparam("w"), _D.d_id == bindparam("d"))
_CUSTOMER = (_C.c_w_id == bindparam("w"), _C.c_d_id == bindparam("d"), _C.c_id == bindparam("c"))
_ORDER = (_O.o_w_id == bindparam("w"), _O.o_d_id == bindparam("d"), _O.o_id == bindparam("o"))
_LINES = (_OL.ol_w_id == bindparam("w"), _OL.ol_d_id == bindparam("d"), _OL.ol_o_id == bindparam("o"))
_NAMED = (_C.c_w_id == bindparam("w"), _C.c_d_id == bindparam("d"), _C.c_last == bindparam("last"))

# new-order
BUYER = (
    select(_W.w_tax, _C.c_discount, _C.c_last, _C.c_credit)
    .select_from(schema.customer.join(schema.warehouse, _W.w_id == _C.c_w_id))
    .where(*_CUSTOMER)
)
NEXT_ORDER = (
    update(schema.district).where(*_DISTRICT).values(d_next_o_id=_D.d_next_o_id + _ONE).returning(_D.d_tax, _D.d_next_o_id)
)
ADD_ORDER = insert(schema.orders).values(
    o_w_id=bindparam("w"),
    o_d_id=bindparam("d"),
    o_id=bindparam("o"),
    o_c_id=bindparam("c"),
    o_entry_d=bindparam("now"),
    o_ol_cnt=bindparam("lines"),
    o_all_local=bindparam("local"),
)
ADD_NEW_ORDER = insert(schema.new_order).values(no_w_id=bindparam("w"), no_d_id=bindparam("d"), no_o_id=bindparam("o"))
ITEM = select(_I.i_price, _I.i_name, _I.i_data).where(_I.i_id == bindparam("i"))
_LEFT = _S.s_quantity - bindparam("q")
_LOW = _LEFT < literal_column("10", Integer)  # noqa: SIM300 - the other way round it is a Yoda condition
TAKE_STOCK = (
    update(schema.stock)
    .where(_S.s_w_id == bindparam("w"), _S.s_i_id == bindparam("i"))
    .values(
        # Clause 2.4.2.2: stock that would fall below ten is filled up by 91.
        s_quantity=_LEFT + case((_LOW, literal_column("91")), else_=literal_column("0")),
        s_ytd=_S.s_ytd + bindparam("q"),
        s_order_cnt=_S.s_order_cnt + _ONE,
        s_remote_cnt=_S.s_remote_cnt + bindparam("remote"),
    )
    .returning(_S.s_quantity, _S.s_data, *(_S[f"s_dist_{number:02}"] for number in range(1, DISTRICTS_MAX + 1)))
)
ADD_LINE = insert(schema.order_line).values(
    ol_w_id=bindparam("w"),
    ol_d_id=bindparam("d"),
    ol_o_id=bindparam("o"),
    ol_number=bindparam("number"),
    ol_i_id=bindparam("i"),
    ol_supply_w_id=bindparam("supply"),
    ol_quantity=bindparam("q"),
    ol_amount=bindparam("amount"),
    ol_dist_info=bindparam("info"),
)

# payment
PAY_WAREHOUSE = (
    update(schema.warehouse).where(_W.w_id == bindparam("w")).values(w_ytd=_W.w_ytd + bindparam("amount")).returning(_W.w_name)
)
PAY_DISTRICT = update(schema.district).where(*_DISTRICT).values(d_ytd=_D.d_ytd + bindparam("amount")).returning(_D.d_name)
PAY_CUSTOMER = (
    update(schema.customer)
    .where(*_CUSTOMER)
    .values(
        c_balance=_C.c_balance - bindparam("amount"),
        c_ytd_payment=_C.c_ytd_payment + bindparam("amount"),
        c_payment_cnt=_C.c_payment_cnt + _ONE,
    )
    .returning(_C.c_first, _C.c_last, _C.c_credit, _C.c_discount, _C.c_balance)
)
NOTE_BAD_CREDIT = (
    update(schema.customer)
    .where(*_CUSTOMER)
    .values(c_data=func.substr(bindparam("note") + _C.c_data, _ONE, literal_column(str(DATA_MAX))))
    .returning(func.substr(_C.c_data, _ONE, literal_column("200")))
)
ADD_HISTORY = insert(schema.history)
NAMESAKES = select(_C.c_id).where(*_NAMED).order_by(_C.c_first, _C.c_id)

# order-status
BALANCE = select(_C.c_first, _C.c_middle, _C.c_last, _C.c_balance).where(*_CUSTOMER)
LAST_ORDER = (
    select(_O.o_id, _O.o_entry_d, _O.o_carrier_id)
    .where(_O.o_w_id == bindparam("w"), _O.o_d_id == bindparam("d"), _O.o_c_id == bindparam("c"))
    .order_by(_O.o_id.desc())
    .limit(_ONE)
)
LINES = (
    select(_OL.ol_i_id, _OL.ol_supply_w_id, _OL.ol_quantity, _OL.ol_amount, _OL.ol_delivery_d)
    .where(*_LINES)
    .order_by(_OL.ol_number)
)

# delivery
DISTRICTS = select(_D.d_id).where(_D.d_w_id == bindparam("w")).order_by(_D.d_id)
_WAITING = (_NO.no_w_id == bindparam("w"), _NO.no_d_id == bindparam("d"))
TAKE_OLDEST = (
    delete(schema.new_order)
    .where(*_WAITING, _NO.no_o_id == select(func.min(_NO.no_o_id)).where(*_WAITING).correlate(None).scalar_subquery())
    .returning(_NO.no_o_id)
)
SEND_ORDER = update(schema.orders).where(*_ORDER).values(o_carrier_id=bindparam("carrier")).returning(_O.o_c_id)
SEND_LINES = update(schema.order_line).where(*_LINES).values(ol_delivery_d=bindparam("now")).returning(_OL.ol_amount)
CHARGE = (
    update(schema.customer)
    .where(*_CUSTOMER)
    .values(c_balance=_C.c_balance + bindparam("amount"), c_delivery_cnt=_C.c_delivery_cnt + _ONE)
)

# stock-level
NEXT_NUMBER = select(_D.d_next_o_id).where(*_DISTRICT)
LOW_STOCK = (
    select(func.count(distinct(_S.s_i_id)))
    .select_from(schema.order_line.join(schema.stock, (_S.s_w_id == _OL.ol_w_id) & (_S.s_i_id == _OL.ol_i_id)))
    .where(
        _OL.ol_w_id == bindparam("w"),
        _OL.ol_d_id == bindparam("d"),
        _OL.ol_o_id >= bindparam("low"),
        _OL.ol_o_id < bindparam("high"),
        _S.s_quantity < bindparam("threshold"),
    )
)


@dataclass(frozen=True, slots=True)
class Sold:
    """One line of a new order."""

    name: str
    stock: int  # what is left
    brand: str  # B when item and stock are both ORIGINAL, else G
    price: int  # cents
    amount: int  # cents


@dataclass(frozen=True, slots=True)
class NewOrder:
    """What a terminal shows after a new-order, clause 2.4.3.3."""

    order: int
    entered: datetime
    last: str
    credit: str
    discount: int  # ten-thousandths, like the taxes
    warehouse_tax: int
    district_tax: int
    total: int  # cents, after discount and taxes, rounded half up
    lines: list[Sold]


@dataclass(frozen=True, slots=True)
class Payment:
    """What a terminal shows after a payment, clause 2.5.3.3, less the addresses."""

    customer: int
    first: str
    last: str
    credit: str
    discount: int
    balance: int  # cents
    paid: datetime
    data: str | None  # the first 200 characters, for bad credit


@dataclass(frozen=True, slots=True)
class StatusLine:
    """One line of a customer's last order."""

    item: int
    supply_warehouse: int
    quantity: int
    amount: int
    delivered: datetime | None


@dataclass(frozen=True, slots=True)
class OrderStatus:
    """What a terminal shows after an order-status, clause 2.6.3.3."""

    customer: int
    first: str
    middle: str
    last: str
    balance: int
    order: int | None  # None: the customer has none
    entered: datetime | None
    carrier: int | None
    lines: list[StatusLine]


@db.procedure(partition_by="warehouse")
def new_order(tx: Transaction, warehouse: int, district: int, customer: int, lines: list[tuple[int, int, int]]) -> NewOrder:
    """Clause 2.4. `lines` are (item, supplying warehouse, quantity); an unused item rolls back what was done before it."""
    if not 0 < len(lines) <= LINES_MAX:
        tx.abort("bad_order", f"an order has between 1 and {LINES_MAX} lines")
    buyer = tx.execute(BUYER, w=warehouse, d=district, c=customer).one_or_none()
    if buyer is None:
        tx.abort("no_customer", f"customer {customer} of district {district} of warehouse {warehouse}")
    place = tx.execute(NEXT_ORDER, w=warehouse, d=district).one()
    order, now = place.d_next_o_id - 1, tx.now
    local = all(supply == warehouse for _, supply, _ in lines)
    tx.execute(ADD_ORDER, w=warehouse, d=district, o=order, c=customer, now=now, lines=len(lines), local=int(local))
    tx.execute(ADD_NEW_ORDER, w=warehouse, d=district, o=order)
    key = {"w": warehouse, "d": district, "o": order}
    sold = [_sell(tx, key, number, *line) for number, line in enumerate(lines, start=1)]
    total = sum(line.amount for line in sold) * (_WHOLE - buyer.c_discount) * (_WHOLE + buyer.w_tax + place.d_tax)
    return NewOrder(
        order=order,
        entered=now,
        last=buyer.c_last,
        credit=buyer.c_credit,
        discount=buyer.c_discount,
        warehouse_tax=buyer.w_tax,
        district_tax=place.d_tax,
        total=(total + _WHOLE * _WHOLE // 2) // (_WHOLE * _WHOLE),
        lines=sold,
    )


def _sell(tx: Transaction, order: dict[str, int], number: int, item: int, supply: int, quantity: int) -> Sold:  # noqa: PLR0917
    """One line of a new order: finds the item, takes it from stock, notes it."""
    if not 0 < quantity <= QUANTITY_MAX:
        tx.abort("bad_order", f"a quantity is between 1 and {QUANTITY_MAX}")
    found = tx.execute(ITEM, i=item).first()
    if found is None:
        tx.abort("item_not_found", "Item number is not valid")
    price, name, item_data = found
    taken = tx.execute(TAKE_STOCK, w=supply, i=item, q=quantity, remote=int(supply != order["w"])).first()
    if taken is None:
        tx.abort("no_stock", f"warehouse {supply} has no stock of item {item} on this partition")
    left, stock_data, *infos = taken
    amount = price * quantity
    info = infos[order["d"] - 1]
    tx.execute(ADD_LINE, number=number, i=item, supply=supply, q=quantity, amount=amount, info=info, **order)
    original = "ORIGINAL" in item_data and "ORIGINAL" in stock_data
    return Sold(name, left, "B" if original else "G", price, amount)


@db.procedure(partition_by="warehouse")
def payment(  # noqa: PLR0917 - the log holds parameters by position
    tx: Transaction,
    warehouse: int,
    district: int,
    customer_warehouse: int,
    customer_district: int,
    amount: int,
    customer: int | None = None,
    last: str | None = None,
) -> Payment:
    """Clause 2.5. The customer is given by number or by last name, and may live in another warehouse of the same partition."""
    if not 0 < amount <= PAYMENT_MAX:
        tx.abort("bad_amount", f"a payment is between 1 and {PAYMENT_MAX} cents")
    number = _find(tx, customer_warehouse, customer_district, customer, last)
    warehouse_name = tx.execute(PAY_WAREHOUSE, w=warehouse, amount=amount).scalar()
    district_name = tx.execute(PAY_DISTRICT, w=warehouse, d=district, amount=amount).scalar()
    if district_name is None:
        tx.abort("no_district", f"district {district} of warehouse {warehouse}")
    key = {"w": customer_warehouse, "d": customer_district, "c": number}
    paid = tx.execute(PAY_CUSTOMER, amount=amount, **key).one_or_none()
    if paid is None:
        tx.abort("no_customer", f"customer {number} of district {customer_district} of warehouse {customer_warehouse}")
    data: str | None = None
    if paid.c_credit == "BC":
        note = f"{number} {customer_district} {customer_warehouse} {district} {warehouse} {amount}|"
        data = tx.execute(NOTE_BAD_CREDIT, note=note, **key).scalar()
    now = tx.now
    tx.execute(
        ADD_HISTORY,
        h_txn_id=tx.txn_id,
        h_number=0,
        h_c_id=number,
        h_c_d_id=customer_district,
        h_c_w_id=customer_warehouse,
        h_d_id=district,
        h_w_id=warehouse,
        h_date=now,
        h_amount=amount,
        h_data=f"{warehouse_name}    {district_name}",
    )
    return Payment(number, paid.c_first, paid.c_last, paid.c_credit, paid.c_discount, paid.c_balance, now, data)


def _find(tx: Transaction, warehouse: int, district: int, customer: int | None, last: str | None) -> int:
    """The customer's number. Of several with one last name it is the middle one by first name, rounded up (clause 2.5.2.2)."""
    if (customer is None) == (last is None):
        tx.abort("bad_customer", "give either the customer's number or the last name")
    if customer is not None:
        return customer
    found: list[Any] = tx.execute(NAMESAKES, w=warehouse, d=district, last=last).scalars()
    if not found:
        tx.abort("no_customer", f"nobody called {last} in district {district} of warehouse {warehouse}")
    return int(found[(len(found) - 1) // 2])


@db.procedure(partition_by="warehouse", read_only=True)
def order_status(
    tx: Transaction, warehouse: int, district: int, customer: int | None = None, last: str | None = None
) -> OrderStatus:
    """Clause 2.6: the last order of a customer, given by number or by last name."""
    number = _find(tx, warehouse, district, customer, last)
    who = tx.execute(BALANCE, w=warehouse, d=district, c=number).one_or_none()
    if who is None:
        tx.abort("no_customer", f"customer {number} of district {district} of warehouse {warehouse}")
    order = tx.execute(LAST_ORDER, w=warehouse, d=district, c=number).first()
    if order is None:
        return OrderStatus(number, who.c_first, who.c_middle, who.c_last, who.c_balance, None, None, None, [])
    lines = [StatusLine(*line) for line in tx.execute(LINES, w=warehouse, d=district, o=order.o_id)]
    return OrderStatus(
        customer=number,
        first=who.c_first,
        middle=who.c_middle,
        last=who.c_last,
        balance=who.c_balance,
        order=order.o_id,
        entered=order.o_entry_d,
        carrier=order.o_carrier_id,
        lines=lines,
    )


@db.procedure(partition_by="warehouse")
def delivery(tx: Transaction, warehouse: int, carrier: int) -> list[tuple[int, int]]:
    """Clause 2.7: sends the oldest waiting order of every district. Returns (district, order) of those that had one."""
    if not 0 < carrier <= 10:
        tx.abort("bad_carrier", "carriers are numbered from 1 to 10")
    sent = []
    now = tx.now
    for district in tx.execute(DISTRICTS, w=warehouse).scalars():
        order: int | None = tx.execute(TAKE_OLDEST, w=warehouse, d=district).scalar()
        if order is None:
            continue
        customer = tx.execute(SEND_ORDER, w=warehouse, d=district, o=order, carrier=carrier).scalar()
        amount = sum(tx.execute(SEND_LINES, w=warehouse, d=district, o=order, now=now).scalars())
        tx.execute(CHARGE, w=warehouse, d=district, c=customer, amount=amount)
        sent.append((district, order))
    return sent


@db.procedure(partition_by="warehouse", read_only=True)
def stock_level(tx: Transaction, warehouse: int, district: int, threshold: int) -> int:
    """Clause 2.8: how many items of the district's last twenty orders are low in the warehouse's stock."""
    following: int | None = tx.execute(NEXT_NUMBER, w=warehouse, d=district).scalar()
    if following is None:
        tx.abort("no_district", f"district {district} of warehouse {warehouse}")
    low = following - RECENT_ORDERS
    return int(tx.execute(LOW_STOCK, w=warehouse, d=district, low=low, high=following, threshold=threshold).scalar())
