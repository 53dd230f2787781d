"""TPC-C: orders, payments and deliveries of a wholesale supplier; the standard load of transaction processing.

The warehouse is the partitioning column: a call runs on the partition of its warehouse, and touches other warehouses only where
these live on the same partition. `schema` has the tables, `population` fills them by logged calls, `transactions` has the five
transactions, `mix` draws a seeded stream of requests, `checks` (imported by who wants them) the consistency conditions.

What differs from the specification (TPC Benchmark C, revision 5.11), and what does not:

- Money is integer cents, taxes and discounts are ten-thousandths: exact in SQL and in Python, and sums need no rounding.
- Of the remote warehouses of clauses 2.4.1.5 and 2.5.1.2, only those on the same partition are used. A drawn warehouse that lives
  elsewhere is replaced by the home warehouse, and `mix.Tally` counts how many were.
- A delivery is executed when it is called, not queued (clause 2.7 lets it be deferred).
- There are no terminals: no think times, no keying times. So the rate is no tpmC.
- One in a hundred new-orders names an unused item *last*, and is rolled back after all its other work, as clause 2.4.1.4 wants.
"""

from __future__ import annotations

from bench._tpcc.mix import MixTally, workload
from bench._tpcc.population import SMALL, Population, loader
from bench._tpcc.schema import db
from bench._tpcc.transactions import delivery, new_order, order_status, payment, stock_level

__all__ = [
    "SMALL",
    "MixTally",
    "Population",
    "db",
    "delivery",
    "loader",
    "new_order",
    "order_status",
    "payment",
    "stock_level",
    "workload",
]
