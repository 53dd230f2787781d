"""The consistency conditions of TPC-C, clause 3.3.2, as queries.

Each query is asked for one warehouse, and returns the rows that break the condition: none when it holds. All rows of a warehouse
are on one partition, so asking every partition and joining the answers (`/v1/query` without a partition) is right. 3.3.2.11 is
stated for the initial population; here it also counts what was delivered since, so that it can be asked at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ROWS_MAX = 10  # that break a condition, listed per warehouse

Query = Callable[[str, Sequence[Any]], Iterable[Sequence[Any]]]  # SQL and parameters to rows


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `sql` takes the warehouse and returns key columns and the two sides that differ."""

    clause: str
    says: str
    sql: str


_DELIVERED = """
    SELECT o_d_id AS d, o_c_id AS c, sum(ol_amount) AS amount
    FROM orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
    WHERE o_w_id = ?1 AND ol_delivery_d IS NOT NULL GROUP BY o_d_id, o_c_id"""
_PAID = """
    SELECT h_c_d_id AS d, h_c_id AS c, sum(h_amount) AS amount FROM history WHERE h_c_w_id = ?1 GROUP BY h_c_d_id, h_c_id"""

CONDITIONS = (
    Condition(
        "3.3.2.1",
        "W_YTD = sum(D_YTD)",
        """SELECT w_id, w_ytd, taken FROM
           (SELECT w_id, w_ytd, (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id) AS taken FROM warehouse WHERE w_id = ?1)
           WHERE w_ytd IS NOT taken""",
    ),
    Condition(
        "3.3.2.2",
        "D_NEXT_O_ID - 1 = max(O_ID) = max(NO_O_ID)",
        """SELECT d_w_id, d_id, d_next_o_id, last, waiting FROM
           (SELECT d_w_id, d_id, d_next_o_id,
                   (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) AS last,
                   (SELECT max(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id) AS waiting
            FROM district WHERE d_w_id = ?1)
           WHERE d_next_o_id - 1 IS NOT last OR waiting <> last""",  # waiting is NULL when nothing waits
    ),
    Condition(
        "3.3.2.3",
        "max(NO_O_ID) - min(NO_O_ID) + 1 = rows of NEW-ORDER",
        """SELECT no_w_id, no_d_id, max(no_o_id) - min(no_o_id) + 1, count(*) FROM new_order WHERE no_w_id = ?1
           GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)""",
    ),
    Condition(
        "3.3.2.4",
        "sum(O_OL_CNT) = rows of ORDER-LINE",
        """SELECT d_w_id, d_id, ordered, lines FROM
           (SELECT d_w_id, d_id,
                   (SELECT coalesce(sum(o_ol_cnt), 0) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) AS ordered,
                   (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id) AS lines
            FROM district WHERE d_w_id = ?1)
           WHERE ordered <> lines""",
    ),
    Condition(
        "3.3.2.5",
        "O_CARRIER_ID is null if and only if NEW-ORDER has the order",
        """SELECT o_w_id, o_d_id, o_id, o_carrier_id, no_o_id
           FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
           WHERE o_w_id = ?1 AND (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)""",
    ),
    Condition(
        "3.3.2.6",
        "O_OL_CNT = rows of ORDER-LINE of the order",
        """SELECT o_w_id, o_d_id, o_id, o_ol_cnt, lines FROM
           (SELECT o_w_id, o_d_id, o_id, o_ol_cnt,
                   (SELECT count(*) FROM order_line WHERE ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id) AS lines
            FROM orders WHERE o_w_id = ?1)
           WHERE o_ol_cnt <> lines""",
    ),
    Condition(
        "3.3.2.7",
        "OL_DELIVERY_D is null if and only if O_CARRIER_ID of its order is",
        """SELECT ol_w_id, ol_d_id, ol_o_id, ol_number, ol_delivery_d, o_carrier_id
           FROM order_line LEFT JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
           WHERE ol_w_id = ?1 AND (o_id IS NULL OR (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL))""",
    ),
    Condition(
        "3.3.2.8",
        "W_YTD = sum(H_AMOUNT)",
        """SELECT w_id, w_ytd, paid FROM
           (SELECT w_id, w_ytd, (SELECT sum(h_amount) FROM history WHERE h_w_id = w_id) AS paid FROM warehouse WHERE w_id = ?1)
           WHERE w_ytd IS NOT paid""",
    ),
    Condition(
        "3.3.2.9",
        "D_YTD = sum(H_AMOUNT)",
        """SELECT d_w_id, d_id, d_ytd, paid
           FROM district LEFT JOIN (SELECT h_d_id, sum(h_amount) AS paid FROM history WHERE h_w_id = ?1 GROUP BY h_d_id)
                ON h_d_id = d_id
           WHERE d_w_id = ?1 AND d_ytd IS NOT paid""",
    ),
    Condition(
        "3.3.2.10",
        "C_BALANCE = sum(OL_AMOUNT) of delivered lines - sum(H_AMOUNT)",
        f"""WITH delivered AS ({_DELIVERED}), paid AS ({_PAID})
           SELECT c_w_id, c_d_id, c_id, c_balance, coalesce(delivered.amount, 0) - coalesce(paid.amount, 0)
           FROM customer LEFT JOIN delivered ON delivered.d = c_d_id AND delivered.c = c_id
                LEFT JOIN paid ON paid.d = c_d_id AND paid.c = c_id
           WHERE c_w_id = ?1 AND c_balance <> coalesce(delivered.amount, 0) - coalesce(paid.amount, 0)""",  # noqa: S608 - text of this module
    ),
    Condition(
        "3.3.2.11",
        "rows of ORDER - rows of NEW-ORDER = 2,100 of 3,000, and what was delivered since",
        """SELECT d_w_id, d_id, orders - waiting, customers * 7 / 10 + delivered FROM
           (SELECT d_w_id, d_id,
                   (SELECT count(*) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) AS orders,
                   (SELECT count(*) FROM new_order WHERE no_w_id = d_w_id AND no_d_id = d_id) AS waiting,
                   (SELECT count(*) FROM customer WHERE c_w_id = d_w_id AND c_d_id = d_id) AS customers,
                   (SELECT coalesce(sum(c_delivery_cnt), 0) FROM customer WHERE c_w_id = d_w_id AND c_d_id = d_id) AS delivered
            FROM district WHERE d_w_id = ?1)
           WHERE orders - waiting <> customers * 7 / 10 + delivered""",
    ),
    Condition(
        "3.3.2.12",
        "C_BALANCE + C_YTD_PAYMENT = sum(OL_AMOUNT) of delivered lines",
        f"""WITH delivered AS ({_DELIVERED})
           SELECT c_w_id, c_d_id, c_id, c_balance + c_ytd_payment, coalesce(delivered.amount, 0)
           FROM customer LEFT JOIN delivered ON delivered.d = c_d_id AND delivered.c = c_id
           WHERE c_w_id = ?1 AND c_balance + c_ytd_payment <> coalesce(delivered.amount, 0)""",  # noqa: S608
    ),
)


def violations(query: Query, warehouses: Iterable[int]) -> Iterator[str]:
    """Every row that breaks a condition, with its clause; nothing when all conditions hold."""
    for warehouse in warehouses:
        for condition in CONDITIONS:
            for row in query(f"{condition.sql} LIMIT {ROWS_MAX}", (warehouse,)):
                yield f"{condition.clause} ({condition.says}): {', '.join(map(str, row))}"
