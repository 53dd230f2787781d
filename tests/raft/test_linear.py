"""The judge of client histories: known good ones pass, known bad ones do not, and it agrees with trying every order."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.raft.sim import linear
from tests.raft.sim.linear import UNWRITTEN, Operation, Value, linearizable, until

A, B, C = (1, 1), (2, 1), (3, 1)


def write(value: Value, began: int, ended: int | None) -> Operation:
    """A write of this value."""
    return Operation(began, ended, True, value)


def read(value: Value, began: int, ended: int | None) -> Operation:
    """A read that saw this value."""
    return Operation(began, ended, False, value)


GOOD = {
    "nothing": [],
    "read of an unwritten register": [read(UNWRITTEN, 1, 2)],
    "one after the other": [write(A, 1, 2), read(A, 3, 4), write(B, 5, 6), read(B, 7, 8)],
    "a read beside a write sees the old value": [write(A, 1, 2), write(B, 3, 8), read(A, 4, 5), read(B, 6, 7)],
    "two writes at once in either order": [write(A, 1, 6), write(B, 2, 5), read(A, 7, 8)],
    "a write without answer took effect": [write(A, 1, None), read(A, 2, 3)],
    "a write without answer takes effect late": [write(A, 1, None), read(UNWRITTEN, 2, 3), read(A, 4, 5)],
    "a write without answer never takes effect": [write(A, 1, None), write(B, 2, 3), read(B, 4, 5)],
    "a read without answer says nothing": [write(A, 1, 2), read(C, 3, None)],
}
BAD = {
    "a stale read": [write(A, 1, 2), write(B, 3, 4), read(A, 5, 6)],
    "an acknowledged write is lost": [write(A, 1, 2), read(UNWRITTEN, 3, 4)],
    "a value from nowhere": [read(A, 1, 2)],
    "a value from the future": [read(A, 1, 2), write(A, 3, 4)],
    "reads go back in time": [write(A, 1, 9), write(B, 2, 8), read(A, 3, 4), read(B, 5, 6), read(A, 7, 10)],
    "two readers see two orders": [
        write(A, 1, 12),
        write(B, 2, 13),
        read(A, 3, 4),
        read(B, 5, 6),
        read(B, 7, 8),
        read(A, 9, 10),
    ],
    "a write without answer takes effect and is undone": [write(A, 1, 2), write(B, 3, None), read(B, 4, 5), read(A, 6, 7)],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_history_that_could_have_happened_passes(history: list[Operation]) -> None:
    """There is an order."""
    assert linearizable(history)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_history_that_cannot_have_happened_is_refused(history: list[Operation]) -> None:
    """There is none, in whatever order the operations are told."""
    assert not linearizable(history)
    assert not linearizable(history[::-1])


def test_judge_agrees_with_trying_every_order() -> None:
    """On small random histories it says what a search through all orders says, of which there are both kinds."""
    rng = random.Random(4)
    found = {True: 0, False: 0}
    for _ in range(600):
        history = _random_history(rng)
        expected = _by_brute_force(history)
        assert linearizable(history) is expected, history
        found[expected] += 1
    assert min(found.values()) > 60


def _random_history(rng: random.Random) -> list[Operation]:
    moments = rng.sample(range(100), 10)
    history = []
    for number in range(5):
        began, ended = sorted(moments[2 * number : 2 * number + 2])
        if rng.random() < 0.5:
            history.append(write((number, 1), began, ended if rng.random() < 0.8 else None))
        else:
            history.append(read(rng.choice([UNWRITTEN, *((n, 1) for n in range(5))]), began, ended))
    return history


def _by_brute_force(history: list[Operation]) -> bool:
    sure = [each for each in history if each.ended is not None]
    unsure = [each for each in history if each.ended is None]
    return any(
        _is_an_order(order)
        for count in range(len(unsure) + 1)
        for some in itertools.combinations(unsure, count)
        for order in itertools.permutations([*sure, *some])
    )


def _is_an_order(order: tuple[Operation, ...]) -> bool:
    value = UNWRITTEN
    for place, each in enumerate(order):
        if any(later.ended is not None and later.ended < each.began for later in order[place + 1 :]):
            return False
        if each.write:
            value = each.value
        elif each.value != value:
            return False
    return True


def test_prefix_leaves_what_had_no_answer_yet_open() -> None:
    """A read that saw a write behind the cut is not held against anyone."""
    history = [write(A, 1, 2), read(B, 3, 8), write(B, 4, 7)]
    assert until(history, 3) == history
    assert until(history, 2) == [write(A, 1, 2), read(B, 3, None)]
    assert linearizable(until(history, 2))


def test_endless_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that would take too long to judge is an error, not a pass."""
    monkeypatch.setattr(linear, "STATES_MAX", 50)
    everything_at_once = [write((n, 1), n, 100 + n) for n in range(10)]
    with pytest.raises(AssertionError, match="more than 50 states"):
        linearizable([*everything_at_once, read((99, 1), 200, 201)])
