"""Tests of `cmdlog.node.placing.shares`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.placing.shares import Shares


def taken_one_by_one(shares: Shares, *names: str) -> None:
    """Each takes single units, in turn, until none gets another."""
    while {shares.take_share(name, 1) for name in names} != {False}:
        pass


def test_credential_alone_gets_half() -> None:
    """The rest stays free for others."""
    shares = Shares(64)
    taken_one_by_one(shares, "one")
    assert shares.held == {"one": 32}


def test_credentials_that_want_all_get_equal_parts_and_leave_one() -> None:
    """A newcomer finds room whatever the others do."""
    shares = Shares(64)
    taken_one_by_one(shares, "one", "two", "three")
    assert shares.held == {"one": 16, "two": 16, "three": 16}
    assert shares.take_share("new", 16)


def test_holder_of_nothing_may_take_what_is_free() -> None:
    """Something larger than a share is not refused for ever."""
    shares = Shares(64)
    assert shares.take_share("one", 60)
    assert not shares.take_share("one", 1)
    assert not shares.take_share("two", 5)
    assert shares.take_share("two", 4)


def test_what_is_given_back_is_told() -> None:
    """Those that wait for room look again."""
    shares, heard = Shares(64), list[str]()
    shares.on_room[lambda: heard.append("room")] = None
    assert shares.take_share("one", 32)
    shares.give_back("one", 32)
    assert (heard, shares.held, shares.total) == (["room"], {}, 0)


def test_credential_alone_may_get_more_than_half() -> None:
    """Where most have one: four parts in five, and four in five of the rest for the next."""
    shares = Shares(100, times=4)
    for name, share in (("one", 80), ("two", 16), ("three", 3)):
        taken_one_by_one(shares, name)
        assert shares.held[name] == share
    both = Shares(90, times=4)
    taken_one_by_one(both, "one", "two")
    assert both.held == {"one": 40, "two": 40}


def test_what_is_known_to_be_held_counts() -> None:
    """Although it is more than would be allowed."""
    shares = Shares(10)
    shares.hold("one", 9)
    shares.hold("two", 9)
    assert not shares.take_share("three", 1)
    shares.give_back("one", 9)
    assert shares.take_share("three", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 20))))
def test_shares_add_up_and_none_takes_all(steps: list[tuple[str, int]]) -> None:
    """Whatever is taken and given back, in any order."""
    shares = Shares(40)
    for name, amount in steps:
        if amount >= 0:
            shares.take_share(name, amount)
        else:
            shares.give_back(name, min(-amount, shares.held.get(name, 0)))
        assert shares.total == sum(shares.held.values()) <= shares.whole
        assert all(held > 0 for held in shares.held.values())
