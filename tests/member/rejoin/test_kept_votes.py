"""Votes of a directory that is given up are read from whatever still shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.member.rejoin.kept_votes import newer_vote, read_votes
from tests.member.rejoin.copykit import FILES, OfferedCopy
from tests.member.rejoin.test_rejoin_steps import old_directory

pytestmark = pytest.mark.slow  # the copy comes from a running node


@pytest.mark.parametrize(
    ("before", "other", "after"),
    [
        ((3, 1), (2, 2), (3, 1)),
        ((3, None), (3, 2), (3, 2)),
        ((3, 1), (3, None), (3, 1)),
        ((3, 1), (4, None), (4, None)),
    ],
)
def test_the_higher_term_holds_and_a_vote_stays(
    before: tuple[int, int | None], other: tuple[int, int | None], after: tuple[int, int | None]
) -> None:
    """A term never falls; within one a vote is never lost."""
    assert newer_vote(before, other) == after


@pytest.mark.parametrize("damaged", ["nothing", "hardstate", "log"])
def test_either_home_of_the_votes_is_enough(offer: OfferedCopy, tmp_path: Path, damaged: str) -> None:
    """The hard state file and the log both have them."""
    directory = old_directory(tmp_path, offer)
    votes = read_votes(FILES, str(directory))
    assert votes[0] == (2, 1)
    if damaged == "hardstate":
        (directory / "log" / "hardstate").write_bytes(bytes(1 << 17))
    elif damaged == "log":
        for segment in (directory / "log").glob("seg-*"):
            segment.write_bytes(bytes(segment.stat().st_size))
    if damaged != "hardstate":  # without it the log cannot be opened at all
        assert read_votes(FILES, str(directory)) == votes


def test_nothing_is_read_of_an_empty_directory(tmp_path: Path) -> None:
    """It shows no votes."""
    assert read_votes(FILES, str(tmp_path)) == {}
