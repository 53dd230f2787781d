"""Majorities, of one set of voters or of both sets of a joint configuration.

One rule: pure functions of a configuration and of what is known about its voters; what is unknown counts as missing. So no answer
here is ever taken back by learning more.

A joint configuration decides only what each of its halves decides by itself (Raft paper, section 6). A half without voters
decides everything and so constrains nothing, as in etcd's `quorum` package: the outgoing half, outside a joint one.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Mapping, Sequence
from itertools import repeat
from typing import Final

from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.wal.ids import Index

INDEX_UNBOUNDED: Final = Index((1 << 63) - 1)
"""What nobody holds back: the commit index of a set without voters."""
_NOTHING: Final = Index(0)


class Ballot(enum.Enum):
    """The state of an election."""

    WON = "won"
    LOST = "lost"  # the voters that are left cannot win it any more
    OPEN = "open"


def majority(voters: int) -> int:
    """Voters that make a majority: more than half of them."""
    return voters // 2 + 1


def joint_committed(config: Configuration, match: Mapping[NodeId, Index]) -> Index:
    """The highest index that a majority of each half holds durably. A voter without an entry in `match` holds nothing."""
    committed = _committed(config.voters, match)
    if config.outgoing:
        return min(committed, _committed(config.outgoing, match))
    return committed


def vote_result(config: Configuration, votes: Mapping[NodeId, bool]) -> Ballot:
    """Counts the votes of voters; answers of others are ignored. Lost in one half is lost, won is won in both."""
    ballot = _ballot(config.voters, votes)
    if not config.outgoing or ballot is Ballot.LOST:
        return ballot
    other = _ballot(config.outgoing, votes)
    return ballot if other is Ballot.WON else other


def has_quorum(config: Configuration, live: Container[NodeId]) -> bool:
    """Whether `live` holds a majority of each half.

    `live` are those heard from lately for check-quorum, those that acknowledged a round for reads, and those that are up for a
    change: its new configuration must not need more live voters than there are.
    """
    return _has_majority(config.voters, live) and (not config.outgoing or _has_majority(config.outgoing, live))


def _committed(voters: Sequence[NodeId], match: Mapping[NodeId, Index]) -> Index:
    """The median from below: of n ascending indexes, those from (n - 1) // 2 on are held by a majority."""
    if not voters:
        return INDEX_UNBOUNDED
    held = sorted(map(match.get, voters, repeat(_NOTHING)))
    return held[(len(held) - 1) // 2]


def _ballot(voters: Sequence[NodeId], votes: Mapping[NodeId, bool]) -> Ballot:
    needed = majority(len(voters)) if voters else 0
    granted = refused = 0
    for node in voters:
        vote = votes.get(node)
        if vote is not None:
            granted += vote
            refused += not vote
    if granted >= needed:
        return Ballot.WON
    return Ballot.LOST if len(voters) - refused < needed else Ballot.OPEN


def _has_majority(voters: Sequence[NodeId], live: Container[NodeId]) -> bool:
    return not voters or sum([node in live for node in voters]) * 2 > len(voters)
