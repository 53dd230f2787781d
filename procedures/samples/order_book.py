"""An exchange: limit orders meet by price, then by time; a trade is made at the price of the order that was there first.

A symbol is the unit of partitioning: its orders are matched one after the other on one thread, which is what an exchange is.
Prices are `Numeric(12, 4)`, compared and sorted in SQL as numbers. Money does not change hands here: `ledger` does that.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, DateTime, Enum, Index, Integer, Numeric, String, bindparam, delete, func, insert, select, update

from cmdlog import Database, Transaction

db = Database("order_book")

TICK = Decimal("0.0001")
PRICE_MAX = Decimal("99999999.9999")  # what Numeric(12, 4) holds
QUANTITY_MAX = 1_000_000_000
LEVELS_MAX = 100


class Side(enum.Enum):
    """Of an order."""

    BUY = "buy"
    SELL = "sell"


orders = db.table(
    "orders",
    Column("symbol", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("trader", String, nullable=False),
    Column("side", Enum(Side), nullable=False),
    Column("price", Numeric(12, 4), nullable=False),
    Column("open_quantity", Integer, nullable=False),
    Index("orders_by_price", "symbol", "side", "price", "number"),
    partition_by="symbol",
)
trades = db.table(
    "trades",
    Column("symbol", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("made_at", DateTime(timezone=True), nullable=False),
    Column("price", Numeric(12, 4), nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("buyer", String, nullable=False),
    Column("seller", String, nullable=False),
    partition_by="symbol",
)
symbols = db.table(
    "symbols",
    Column("symbol", String, primary_key=True),
    Column("last_order", Integer, nullable=False),
    Column("last_trade", Integer, nullable=False),
    partition_by="symbol",
)

LIST = insert(symbols).values(symbol=bindparam("symbol_"), last_order=0, last_trade=0)
NUMBERS = select(symbols.c.last_order, symbols.c.last_trade).where(symbols.c.symbol == bindparam("symbol_"))
COUNT = (
    update(symbols)
    .where(symbols.c.symbol == bindparam("symbol_"))
    .values(last_order=bindparam("order_"), last_trade=bindparam("trade_"))
)
_OPPOSITE = select(orders.c.number, orders.c.trader, orders.c.price, orders.c.open_quantity).where(
    orders.c.symbol == bindparam("symbol_"), orders.c.side == bindparam("side_")
)
BEST = {
    Side.BUY: _OPPOSITE.where(orders.c.price <= bindparam("limit_")).order_by(orders.c.price, orders.c.number).limit(1),
    Side.SELL: _OPPOSITE.where(orders.c.price >= bindparam("limit_")).order_by(orders.c.price.desc(), orders.c.number).limit(1),
}
"""What a new order of this side meets first."""
_ORDER = (orders.c.symbol == bindparam("symbol_"), orders.c.number == bindparam("number_"))
ORDER = select(orders.c.trader, orders.c.open_quantity).where(*_ORDER)
REDUCE = update(orders).where(*_ORDER).values(open_quantity=orders.c.open_quantity - bindparam("quantity_"))
REMOVE = delete(orders).where(*_ORDER)
REST = insert(orders).values(
    symbol=bindparam("symbol_"),
    number=bindparam("number_"),
    trader=bindparam("trader_"),
    side=bindparam("side_"),
    price=bindparam("price_"),
    open_quantity=bindparam("quantity_"),
)
ADD_TRADE = insert(trades).values(
    symbol=bindparam("symbol_"),
    number=bindparam("number_"),
    made_at=bindparam("at_"),
    price=bindparam("price_"),
    quantity=bindparam("quantity_"),
    buyer=bindparam("buyer_"),
    seller=bindparam("seller_"),
)
_LEVELS = (
    select(orders.c.price, func.sum(orders.c.open_quantity))
    .where(orders.c.symbol == bindparam("symbol_"), orders.c.side == bindparam("side_"))
    .group_by(orders.c.price)
    .limit(bindparam("levels_"))
)
LEVELS = {Side.BUY: _LEVELS.order_by(orders.c.price.desc()), Side.SELL: _LEVELS.order_by(orders.c.price)}
TURNOVER = select(func.sum(trades.c.quantity), func.sum(trades.c.price * trades.c.quantity)).where(
    trades.c.symbol == bindparam("symbol_")
)


@dataclass(frozen=True, slots=True)
class Trade:
    """A part of an order that was filled."""

    number: int
    price: Decimal
    quantity: int
    counterparty: str


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of an order: its number, its trades, and how much of it rests in the book."""

    number: int
    trades: list[Trade]
    open_quantity: int


@dataclass(frozen=True, slots=True)
class Depth:
    """(price, quantity) per level, best first."""

    bids: list[tuple[Decimal, int]]
    asks: list[tuple[Decimal, int]]


@db.procedure(partition_by="symbol")
def list_symbol(tx: Transaction, symbol: str) -> None:
    """Opens a book for a symbol."""
    if tx.execute(NUMBERS, symbol_=symbol).first() is not None:
        tx.abort("listed", f"{symbol} is listed")
    tx.execute(LIST, symbol_=symbol)


@db.procedure(partition_by="symbol")
def place(  # noqa: PLR0917 - the log holds parameters by position
    tx: Transaction, symbol: str, trader: str, side: Side, price: Decimal, quantity: int
) -> Placed:
    """Matches a limit order with what it meets, and leaves the rest in the book."""
    if not TICK <= price <= PRICE_MAX or price != price.quantize(TICK):
        tx.abort("bad_price", f"a price is a multiple of {TICK} up to {PRICE_MAX}")
    if not 0 < quantity <= QUANTITY_MAX:
        tx.abort("bad_quantity", f"1 to {QUANTITY_MAX}")
    row = tx.execute(NUMBERS, symbol_=symbol).first()
    if row is None:
        tx.abort("unknown_symbol", f"{symbol} is not listed")
    last_order, last_trade = row
    number = last_order + 1
    made = _match(tx, symbol, trader, side, price, quantity, last_trade)
    left = quantity - sum(trade.quantity for trade in made)
    if left:
        tx.execute(REST, symbol_=symbol, number_=number, trader_=trader, side_=side, price_=price, quantity_=left)
    tx.execute(COUNT, symbol_=symbol, order_=number, trade_=last_trade + len(made))
    return Placed(number, made, left)


def _match(  # noqa: PLR0917 - as above
    tx: Transaction, symbol: str, trader: str, side: Side, limit: Decimal, quantity: int, last_trade: int
) -> list[Trade]:
    """Fills what can be filled at the limit or better."""
    other = Side.SELL if side is Side.BUY else Side.BUY
    made: list[Trade] = []
    while quantity:
        best = tx.execute(BEST[side], symbol_=symbol, side_=other, limit_=limit).first()
        if best is None:
            break
        resting, counterparty, price, available = best
        filled = min(quantity, available)
        quantity -= filled
        if filled == available:
            tx.execute(REMOVE, symbol_=symbol, number_=resting)
        else:
            tx.execute(REDUCE, symbol_=symbol, number_=resting, quantity_=filled)
        trade = Trade(last_trade + len(made) + 1, price, filled, counterparty)
        buyer, seller = (trader, counterparty) if side is Side.BUY else (counterparty, trader)
        tx.execute(
            ADD_TRADE,
            symbol_=symbol, number_=trade.number, at_=tx.now, price_=price, quantity_=filled, buyer_=buyer, seller_=seller,
        )  # fmt: skip
        made.append(trade)
    return made


@db.procedure(partition_by="symbol")
def cancel(tx: Transaction, symbol: str, trader: str, number: int) -> int:
    """Removes what is left of an order from the book; returns how much that was."""
    row = tx.execute(ORDER, symbol_=symbol, number_=number).first()
    if row is None or row[0] != trader:
        tx.abort("unknown_order", f"{trader} has no order {number} in the book")
    tx.execute(REMOVE, symbol_=symbol, number_=number)
    left: int = row[1]
    return left


@db.procedure(partition_by="symbol", read_only=True)
def depth(tx: Transaction, symbol: str, levels: int = 10) -> Depth:
    """The best prices of both sides."""
    most = min(max(levels, 1), LEVELS_MAX)
    bids, asks = ([tuple(row) for row in tx.execute(LEVELS[side], symbol_=symbol, side_=side, levels_=most)] for side in Side)
    return Depth(bids, asks)


@db.procedure(partition_by="symbol", read_only=True)
def turnover(tx: Transaction, symbol: str) -> tuple[int, Decimal]:
    """What was traded: quantity, and price times quantity."""
    row = tx.execute(TURNOVER, symbol_=symbol).first()
    return (0, Decimal(0)) if row is None or row[0] is None else (row[0], row[1])


Call = tuple[str, dict[str, Any]]
SYMBOLS = ("ACME", "GLOBEX", "INITECH")


def loader() -> Iterator[Call]:
    """Calls that open the books."""
    for symbol in SYMBOLS:
        yield "list_symbol", {"symbol": symbol}


def workload(seed: int, *, calls: int, traders: int = 12) -> Iterator[Call]:
    """Seeded orders around one price, and cancellations of which many come too late."""
    chance = random.Random(seed)
    for _ in range(calls):
        symbol, trader = chance.choice(SYMBOLS), f"t{chance.randrange(traders)}"
        if chance.random() < 0.1:
            yield "cancel", {"symbol": symbol, "trader": trader, "number": chance.randrange(1, calls // 3 + 2)}
            continue
        side = chance.choice(("buy", "sell"))
        price = Decimal(100_0000 + chance.randrange(-9_0000, 9_0000)) * TICK
        yield "place", {"symbol": symbol, "trader": trader, "side": side, "price": price, "quantity": chance.randrange(1, 100)}
