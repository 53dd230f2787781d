"""The exchange, tested as an application tests itself: rule by rule, against plain Python, and by replay."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import cmdlog
from cmdlog import Embedded
from cmdlog.testing import OpenEmbedded, assert_replays
from procedures.samples.order_book import PRICE_MAX, SYMBOLS, Depth, Placed, Side, Trade, db, loader, workload

ACME = SYMBOLS[0]


@pytest.fixture
def exchange(cmdlog_embedded: OpenEmbedded) -> Embedded:
    """All symbols listed, no orders."""
    exchange = cmdlog_embedded(db)
    for name, params in loader():
        exchange.call(name, **params)
    return exchange


def place(exchange: Embedded, trader: str, side: str, price: str, quantity: int) -> Placed:
    """An order in ACME."""
    placed: Placed = exchange.call("place", symbol=ACME, trader=trader, side=Side(side), price=Decimal(price), quantity=quantity)
    return placed


def test_the_best_price_is_filled_first_then_the_oldest_order(exchange: Embedded) -> None:
    """At the price of the order that was there; what is left over rests at the limit."""
    place(exchange, "dear", "sell", "10.50", 10)
    place(exchange, "first", "sell", "9.50", 10)
    place(exchange, "second", "sell", "9.50", 10)
    placed = place(exchange, "buyer", "buy", "10.00", 25)
    trades = [Trade(1, Decimal("9.5000"), 10, "first"), Trade(2, Decimal("9.5000"), 10, "second")]
    assert placed == Placed(4, trades, 5)
    assert exchange.call("depth", symbol=ACME) == Depth([(Decimal("10.0000"), 5)], [(Decimal("10.5000"), 10)])


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"price": Decimal(0)}, "bad_price"),
        ({"price": Decimal("1.00001")}, "bad_price"),
        ({"price": PRICE_MAX + 1}, "bad_price"),
        ({"quantity": 0}, "bad_quantity"),
        ({"symbol": "NONE"}, "unknown_symbol"),
    ],
)
def test_orders_that_are_wrong_are_refused(exchange: Embedded, changed: dict[str, Any], code: str) -> None:
    """Each with its code, and nothing rests."""
    order = {"symbol": ACME, "trader": "ann", "side": Side.BUY, "price": Decimal(1), "quantity": 1}
    with pytest.raises(cmdlog.Aborted) as caught:
        exchange.call("place", **{**order, **changed})
    assert caught.value.abort_code == code
    assert exchange.call("depth", symbol=ACME) == Depth([], [])


class Book:
    """One symbol in plain Python: a list of resting orders that is sorted for every order that comes."""

    def __init__(self) -> None:
        self.resting: list[list[Any]] = []  # [number, trader, side, price, open quantity]
        self.orders = self.trades = 0

    def place(self, trader: str, side: str, price: Decimal, quantity: int) -> Placed:
        """As the exchange should."""
        self.orders += 1
        sign = 1 if side == "buy" else -1
        meets = [order for order in self.resting if order[2] != side and sign * (price - order[3]) >= 0]
        made = []
        for order in sorted(meets, key=lambda order: (sign * order[3], order[0])):
            if filled := min(quantity, order[4]):
                self.trades += 1
                made.append(Trade(self.trades, order[3], filled, order[1]))
                quantity, order[4] = quantity - filled, order[4] - filled
        self.resting = [order for order in self.resting if order[4]]
        if quantity:
            self.resting.append([self.orders, trader, side, price, quantity])
        return Placed(self.orders, made, quantity)

    def cancel(self, trader: str, number: int) -> int | None:
        """What was left, None when it is not in the book."""
        found: list[list[Any]] = [order for order in self.resting if order[:2] == [number, trader]]
        self.resting = [order for order in self.resting if order not in found]
        return found[0][4] if found else None


@pytest.mark.slow
def test_a_day_of_trading_is_as_in_plain_python_and_replays(exchange: Embedded) -> None:
    """Every answer is the model's, and the log gives the same state again."""
    books = {symbol: Book() for symbol in SYMBOLS}
    trades = 0
    for name, params in workload(4, calls=600):
        model = getattr(books[params["symbol"]], name)(**{key: value for key, value in params.items() if key != "symbol"})
        if model is None:
            with pytest.raises(cmdlog.Aborted, match="has no order"):
                exchange.call(name, **params)
        else:
            assert exchange.call(name, **params) == model, (name, params)
            trades += len(model.trades) if name == "place" else 0
    assert trades > 100
    assert_replays(exchange)
