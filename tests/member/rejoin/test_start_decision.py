"""Exactly one row of the table holds for whatever a directory shows."""

from __future__ import annotations

import itertools

import pytest

from cmdlog.member.rejoin.start_decision import StartFacts, StartVerdict, decide_start

REFUSE, RESUME, OPEN = StartVerdict.REFUSE, StartVerdict.RESUME, StartVerdict.OPEN


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ((True, False, False), REFUSE), ((True, False, True), REFUSE), ((True, True, False), REFUSE),
        ((True, True, True), REFUSE), ((False, True, False), RESUME), ((False, True, True), RESUME), ((False, False, True), OPEN),
    ],
)  # fmt: skip
def test_directory_that_shows_something_decides_without_the_peers(facts: tuple[bool, bool, bool], verdict: StartVerdict) -> None:
    """Whatever the peers would say."""
    for has_begun in (None, False, True):
        assert decide_start(StartFacts(*facts), has_begun=has_begun) is verdict


def test_empty_directory_asks_the_peers() -> None:
    """A cluster that has begun does not begin a second time."""
    empty = StartFacts(has_tombstone=False, has_rejoin=False, has_instance=False)
    assert decide_start(empty) is None
    assert decide_start(empty, has_begun=True) is StartVerdict.COPY
    assert decide_start(empty, has_begun=False) is StartVerdict.CREATE


def test_only_a_directory_without_anything_is_created() -> None:
    """Nothing that a node has written is ever overwritten by a first start."""
    for facts in itertools.product((False, True), repeat=3):
        verdicts = {decide_start(StartFacts(*facts), has_begun=begun) for begun in (False, True)}
        assert (StartVerdict.CREATE in verdicts) == (facts == (False, False, False))
