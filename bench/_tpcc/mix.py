"""A seeded stream of requests with the mix of clause 5.2.3: 45 new-orders of a hundred, 43 payments, 4 of each of the others.

A call runs on one partition, so a remote warehouse must live on the partition of the home warehouse. Warehouses are drawn as the
specification says; one that lives elsewhere is replaced by the home warehouse, and `MixTally` counts it as left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench._tpcc import draws
from bench._tpcc.population import SMALL, Call, Population

KINDS = ("new_order", "payment", "order_status", "delivery", "stock_level")
WEIGHTS = (45, 43, 4, 4, 4)


@dataclass(slots=True)
class MixTally:
    """What was drawn. `remote` counts those on another warehouse of the same partition, `left_out` those made local."""

    lines: int = 0  # of new-orders
    lines_remote: int = 0
    lines_left_out: int = 0
    payments: int = 0
    payments_remote: int = 0
    payments_left_out: int = 0
    rolled_back: int = 0  # new-orders with an unused item


def workload(
    seed: int,
    *,
    calls: int,
    population: Population = SMALL,
    partition_of: Callable[[int], int] = lambda _warehouse: 0,
    tally: MixTally | None = None,
) -> Iterator[Call]:
    """`calls` requests. `partition_of` tells where a warehouse lives; by default all live together."""
    requests = _Requests(seed, population, partition_of, tally or MixTally())
    for _ in range(calls):
        yield requests.draw()


class _Requests:
    """Draws one request after the other."""

    def __init__(self, seed: int, population: Population, partition_of: Callable[[int], int], tally: MixTally) -> None:
        self._chance = chance = random.Random(f"requests {seed}")
        self._population, self._partition_of, self._tally = population, partition_of, tally
        self._c_customer, self._c_item = chance.randint(0, draws.A_CUSTOMER), chance.randint(0, draws.A_ITEM)
        _, self._c_name = draws.name_constants(population.seed)
        self._draws: dict[str, Callable[[int], dict[str, Any]]] = {
            "new_order": self._new_order,
            "payment": self._payment,
            "order_status": self._order_status,
            "delivery": lambda warehouse: {"warehouse": warehouse, "carrier": chance.randint(1, 10)},
            "stock_level": self._stock_level,
        }

    def draw(self) -> Call:
        (kind,) = self._chance.choices(KINDS, WEIGHTS)
        return kind, self._draws[kind](self._chance.randint(1, self._population.warehouses))

    def _district(self) -> int:
        return self._chance.randint(1, self._population.districts)

    def _customer(self) -> int:
        high = self._population.customers
        return draws.nurand(self._chance, a=draws.A_CUSTOMER, c=self._c_customer, low=1, high=high)

    def _customer_or_name(self) -> dict[str, Any]:
        """By last name in 60 of 100; a small population has only the first names of the list."""
        if self._chance.randint(1, 100) > 60:
            return {"customer": self._customer()}
        high = min(draws.NAMES, self._population.customers) - 1
        return {"last": draws.last_name(draws.nurand(self._chance, a=draws.A_NAME, c=self._c_name, low=0, high=high))}

    def _other(self, home: int) -> int:
        """Another warehouse; the home if there is only one."""
        if self._population.warehouses == 1:
            return home
        drawn = self._chance.randint(1, self._population.warehouses - 1)
        return drawn + (drawn >= home)

    def _together(self, one: int, other: int) -> bool:
        return self._partition_of(one) == self._partition_of(other)

    def _new_order(self, warehouse: int) -> dict[str, Any]:
        chance, tally = self._chance, self._tally
        count = chance.randint(5, 15)
        rolls_back = chance.randint(1, 100) == 1
        lines = []
        for number in range(1, count + 1):
            item = draws.nurand(chance, a=draws.A_ITEM, c=self._c_item, low=1, high=self._population.items)
            if rolls_back and number == count:
                item = self._population.items + 1
            supply = self._other(warehouse) if chance.randint(1, 100) == 1 else warehouse
            if supply != warehouse and not self._together(supply, warehouse):
                tally.lines_left_out += 1
                supply = warehouse
            tally.lines_remote += supply != warehouse
            lines.append((item, supply, chance.randint(1, 10)))
        tally.lines += count
        tally.rolled_back += rolls_back
        return {"warehouse": warehouse, "district": self._district(), "customer": self._customer(), "lines": lines}

    def _payment(self, warehouse: int) -> dict[str, Any]:
        chance, tally = self._chance, self._tally
        district = home_district = self._district()
        home = warehouse
        if chance.randint(1, 100) > 85 and self._population.warehouses > 1:
            home, home_district = self._other(warehouse), self._district()
            if not self._together(home, warehouse):
                tally.payments_left_out += 1
                home, home_district = warehouse, district
        tally.payments += 1
        tally.payments_remote += home != warehouse
        return {
            "warehouse": warehouse,
            "district": district,
            "customer_warehouse": home,
            "customer_district": home_district,
            "amount": chance.randint(100, 500_000),
            **self._customer_or_name(),
        }

    def _order_status(self, warehouse: int) -> dict[str, Any]:
        return {"warehouse": warehouse, "district": self._district(), **self._customer_or_name()}

    def _stock_level(self, warehouse: int) -> dict[str, Any]:
        return {"warehouse": warehouse, "district": self._district(), "threshold": self._chance.randint(10, 20)}
