"""The soak's judgement: every acknowledged call is in its slot once."""

from __future__ import annotations

import pytest

from bench._soak_app import SQUARE_MODULUS
from bench._soak_tally import SLOTS, Sums, Tally, find_miscounts
from cmdlog import Result
from cmdlog.errors import Aborted, OutcomeUnknown

RESULT = Result(value=1, txn_id=1, partition=0)
NUMBERS = range(0, 40 * SLOTS, SLOTS)  # all of the first slot
UNKNOWN = 40 * SLOTS


def sums_of(*numbers: int) -> Sums:
    """What a slot holds that has counted these."""
    found = Sums()
    for number in numbers:
        found = found.plus(number)
    return found


@pytest.fixture
def tally() -> Tally:
    """A caller whose calls were acknowledged but for one of unknown outcome and one that was refused."""
    tally = Tally(first_slot=640)
    for number in NUMBERS:
        tally.note(number, RESULT)
    tally.note(UNKNOWN, OutcomeUnknown("lost"))
    tally.note(UNKNOWN + SLOTS, Aborted(abort_code="no"))
    return tally


COUNTED = pytest.mark.parametrize(
    ("counted", "right"),
    [
        pytest.param(list(NUMBERS), True, id="all, not the unknown one"),
        pytest.param([*NUMBERS, UNKNOWN], True, id="all, and the unknown one"),
        pytest.param([*NUMBERS, UNKNOWN + SLOTS], False, id="one that was refused"),
        pytest.param([*NUMBERS, UNKNOWN, UNKNOWN], False, id="the unknown one twice"),
        pytest.param(NUMBERS[1:], False, id="one lost that adds nothing to the sums"),
        pytest.param(NUMBERS[:-1], False, id="one lost"),
        pytest.param([*NUMBERS, NUMBERS[3]], False, id="one twice"),
        pytest.param([*NUMBERS[:-1], NUMBERS[3]], False, id="one lost, one twice"),
        pytest.param(
            [*NUMBERS[:3], *NUMBERS[4:6], *NUMBERS[7:], NUMBERS[5], NUMBERS[4]], False, id="two lost, two twice, one sum"
        ),
    ],
)


@COUNTED
def test_only_calls_that_were_acknowledged_are_counted_and_once(tally: Tally, counted: list[int], right: bool) -> None:
    """What a slot holds beyond the acknowledged calls is at most what had no known outcome."""
    wrong = find_miscounts(tally.acknowledged_by_slot, tally.unknown_by_slot, {640: sums_of(*counted)})
    assert (wrong == {}) is right


def test_slot_that_is_missing_and_one_that_nobody_called_are_wrong(tally: Tally) -> None:
    """A table without the row has lost its calls; a row without calls has some that nobody made."""
    assert set(find_miscounts(tally.acknowledged_by_slot, {}, {7: sums_of(1)})) == {7, 640}


def test_many_unknown_outcomes_are_not_judged() -> None:
    """A slot that may hold any of them proves nothing, and says so."""
    assert find_miscounts({1: Sums()}, {1: range(16)}, {1: sums_of(3, 5)}) == {}
    assert "too many" in find_miscounts({1: Sums()}, {1: range(17)}, {1: sums_of(3, 5)})[1]


def test_errors_are_counted_by_code(tally: Tally) -> None:
    """A refusal is no result, and known not to be counted."""
    assert tally.errors == {"outcome_unknown": 1, "no": 1}
    assert tally.unknown_by_slot == {640: [UNKNOWN]}


def test_callers_and_procedure_use_one_modulus() -> None:
    """Numbers beyond it have the square that the procedure adds."""
    number = SQUARE_MODULUS + 3
    assert Sums().plus(number) == Sums(1, number, 9)
