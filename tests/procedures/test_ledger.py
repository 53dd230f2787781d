"""The ledger, tested as an application tests itself: against plain Python, by its invariant, and by replay."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cmdlog
from cmdlog import Embedded
from cmdlog.testing import OpenEmbedded, SettableClock, assert_history_replays, assert_replays, histories
from procedures.samples.ledger import BANK, BOOKS, Line, StatementLine, db, loader, workload

CUSTOMERS = 5


@pytest.fixture
def ledger(cmdlog_embedded: OpenEmbedded) -> Embedded:
    """Customers c0 to c4 in each book, with 100.00 each."""
    ledger = cmdlog_embedded(db)
    for name, params in loader(customers=CUSTOMERS):
        ledger.call(name, **params)
    return ledger


def pay(ledger: Embedded, source: str, target: str, amount: str) -> int:
    """A payment in EUR; returns the entry's number."""
    number: int = ledger.call("post", book="EUR", lines=[Line(source, -Decimal(amount)), Line(target, Decimal(amount))])
    return number


def refused(ledger: Embedded, name: str, **params: Any) -> str:
    """The code that a call is refused with."""
    with pytest.raises(cmdlog.Aborted) as caught:
        ledger.call(name, **params)
    return caught.value.abort_code


def test_money_moves_exactly(ledger: Embedded) -> None:
    """Ten cents twenty times are two, and amounts of different lengths compare as numbers."""
    for _ in range(20):
        pay(ledger, "c0", "c1", "0.10")
    assert ledger.call("balance", book="EUR", account="c0") == Decimal("98.00")
    assert ledger.call("balance", book="EUR", account="c1") == Decimal("102.00")
    pay(ledger, "c0", "c1", "89.00")
    nine = [Line("c0", Decimal("-10.00")), Line("c1", Decimal("10.00"))]
    assert refused(ledger, "post", book="EUR", lines=nine) == "insufficient"  # 9.00 is less than 10.00
    assert ledger.call("balance", book="EUR", account="c0") == Decimal("9.00")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([Line("c0", Decimal(1))], "bad_entry"),
        ([Line("c0", Decimal(1)), Line("c1", Decimal("-1.01"))], "unbalanced"),
        ([Line("c0", Decimal("0.001")), Line("c1", Decimal("-0.001"))], "bad_amount"),
        ([Line("c0", Decimal("1e14")), Line("c1", Decimal("-1e14"))], "bad_amount"),
        ([Line("c0", Decimal("999999999999.99")), Line(BANK, Decimal("-999999999999.99"))], "too_much"),
        ([Line("c0", Decimal(-1)), Line("nobody", Decimal(1))], "unknown_account"),
        ([Line("c0", Decimal(-101)), Line("c1", Decimal(101))], "insufficient"),
    ],
)
def test_entries_that_are_wrong_change_nothing(ledger: Embedded, lines: list[Line], code: str) -> None:
    """Each has its code, and every account is as it was."""
    assert refused(ledger, "post", book="EUR", lines=lines) == code
    assert [ledger.call("balance", book="EUR", account=f"c{n}") for n in range(CUSTOMERS)] == [Decimal(100)] * CUSTOMERS


def test_an_entry_is_reversed_once(ledger: Embedded) -> None:
    """The opposite entry; a second one, and one of an entry that never was, are refused."""
    number = pay(ledger, "c0", "c1", "12.34")
    ledger.call("reverse", book="EUR", number=number)
    assert ledger.call("balance", book="EUR", account="c0") == Decimal("100.00")
    assert refused(ledger, "reverse", book="EUR", number=number) == "reversed"
    assert refused(ledger, "reverse", book="EUR", number=999) == "unknown_entry"


def test_a_statement_shows_the_newest_first(cmdlog_embedded: OpenEmbedded, cmdlog_clock: SettableClock) -> None:
    """With the time at which each entry was posted."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    cmdlog_clock.set(noon)
    ledger = cmdlog_embedded(db)
    for name, params in loader(customers=2):
        ledger.call(name, **params)
    cmdlog_clock.advance(hours=1)
    number = pay(ledger, "c0", "c1", "1.00")
    assert ledger.call("statement", book="EUR", account="c0") == [
        StatementLine(number, noon + timedelta(hours=1), "", Decimal("-1.00")),
        StatementLine(1, noon, "opening", Decimal("100.00")),
    ]
    assert len(ledger.call("statement", book="EUR", account="c0", rows=1)) == 1


@pytest.mark.slow
def test_a_day_of_work_adds_up_and_replays(ledger: Embedded) -> None:
    """Every book sums to zero, every account to its lines as Python adds them, and the log gives the same state again."""
    for name, params in workload(3, calls=400, customers=CUSTOMERS):
        try:
            ledger.call(name, **params)
        except cmdlog.Aborted as error:
            assert error.abort_code in ("unbalanced", "insufficient", "reversed", "unknown_entry")  # noqa: PT017
    sums = [book for partition in ledger.call("trial_balance") for book in partition]
    assert sorted(sums) == sorted((book, Decimal(0)) for book in BOOKS)
    for book in BOOKS:
        held: dict[str, Decimal] = defaultdict(Decimal)
        for account in [BANK, *(f"c{n}" for n in range(CUSTOMERS))]:
            held[account] = sum(
                (line.amount for line in ledger.call("statement", book=book, account=account, rows=1000)), Decimal(0)
            )
            assert ledger.call("balance", book=book, account=account) == held[account]
    assert_replays(ledger)


BOOK, ACCOUNT = st.sampled_from(BOOKS[:1]), st.sampled_from(["a", "b"])
AMOUNT = st.decimals(min_value=-50, max_value=50, places=2)
PARAMETERS = {
    "open_account": {"book": BOOK, "account": ACCOUNT},
    "post": {
        "book": BOOK,
        "lines": st.tuples(ACCOUNT, ACCOUNT, AMOUNT).map(lambda of: [Line(of[0], of[2]), Line(of[1], -of[2])]),
    },
    "reverse": {"book": BOOK},
}


@pytest.mark.slow
@settings(max_examples=5, deadline=None, database=None, derandomize=True)
@given(calls=histories(db, parameters=PARAMETERS))
def test_whatever_is_called_replays(calls: list[tuple[str, dict[str, Any]]]) -> None:
    """Also what nobody thought of."""
    assert_history_replays(db, calls, partitions=1)
