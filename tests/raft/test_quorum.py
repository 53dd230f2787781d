"""Majorities against brute force: every set of nodes is tried, none is reasoned about."""

from __future__ import annotations

import itertools
import timeit
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.raft.configuration import Configuration, NodeId, nodes
from cmdlog.raft.quorum import INDEX_UNBOUNDED, Ballot, has_quorum, joint_committed, majority, vote_result
from cmdlog.wal.ids import Index

NODES = tuple(NodeId(number) for number in range(1, 8))
HALVES = st.sets(st.sampled_from(NODES), max_size=7).map(nodes)
CONFIGURATIONS = st.builds(Configuration, voters=HALVES.filter(bool), outgoing=HALVES)
MATCHES = st.dictionaries(st.sampled_from(NODES), st.integers(0, 6).map(Index))
VOTES = st.dictionaries(st.sampled_from(NODES), st.booleans())


def subsets(members: tuple[NodeId, ...]) -> Iterator[frozenset[NodeId]]:
    """All of them, the empty one too."""
    for size in range(len(members) + 1):
        yield from map(frozenset, itertools.combinations(members, size))


def decides(config: Configuration, nodes_: frozenset[NodeId]) -> bool:
    """The definition: more than half of each half that has members."""
    halves = [half for half in (config.voters, config.outgoing) if half]
    return all(2 * sum(1 for node in half if node in nodes_) > len(half) for half in halves)


def committed_by_trial(config: Configuration, match: Mapping[NodeId, Index]) -> int:
    """The highest index for which the nodes that hold it decide."""
    return max(i for i in range(7) if decides(config, frozenset(n for n in NODES if match.get(n, 0) >= i)))


@pytest.mark.slow
@given(CONFIGURATIONS, MATCHES)
@settings(max_examples=50, deadline=None)
def test_commit_is_the_highest_index_that_deciding_nodes_hold(config: Configuration, match: dict[NodeId, Index]) -> None:
    """Of one half, of two, of odd and even sets, whoever has not answered yet."""
    assert joint_committed(config, match) == committed_by_trial(config, match)


@pytest.mark.slow
@given(CONFIGURATIONS, MATCHES, st.sampled_from(NODES), st.integers(0, 6))
@settings(deadline=None)
def test_commit_never_falls_when_a_match_rises(
    config: Configuration, match: dict[NodeId, Index], node: NodeId, more: int
) -> None:
    """One node that holds more can only move the commit index forward."""
    risen = match | {node: Index(match.get(node, Index(0)) + more)}
    assert joint_committed(config, risen) >= joint_committed(config, match)


@pytest.mark.slow
@given(CONFIGURATIONS, VOTES)
@settings(max_examples=40, deadline=None)
def test_an_election_is_over_when_no_further_vote_can_change_it(config: Configuration, votes: dict[NodeId, bool]) -> None:
    """Won and lost hold for every way in which the others may still vote; open means that both are possible."""
    silent = tuple(node for node in NODES if node not in votes)
    granted = frozenset(node for node, vote in votes.items() if vote)
    outcomes = {decides(config, granted | more) for more in subsets(silent)}
    expected = Ballot.OPEN if len(outcomes) == 2 else Ballot.WON if outcomes == {True} else Ballot.LOST
    assert vote_result(config, votes) is expected


@pytest.mark.slow
@given(CONFIGURATIONS, st.frozensets(st.sampled_from(NODES)))
@settings(deadline=None)
def test_a_quorum_is_what_decides(config: Configuration, live: frozenset[NodeId]) -> None:
    """The same answer as the definition, for any set of live nodes."""
    assert has_quorum(config, live) == decides(config, live)


@pytest.mark.slow
@given(CONFIGURATIONS)
@settings(max_examples=50, deadline=None)
def test_two_quorums_of_one_configuration_share_a_node(config: Configuration) -> None:
    """No set of nodes decides together with its complement also deciding."""
    everybody = frozenset(NODES)
    assert not any(has_quorum(config, one) and has_quorum(config, everybody - one) for one in subsets(NODES))


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)])
def test_a_majority_is_more_than_half(voters: int, needed: int) -> None:
    """Of an even set it is one more than half: two nodes out of four decide nothing."""
    assert majority(voters) == needed
    config = Configuration(voters=NODES[:voters])
    assert has_quorum(config, set(NODES[:needed]))
    assert not has_quorum(config, set(NODES[: needed - 1]))


def test_no_voters_hold_nothing_back() -> None:
    """Without voters everything is won and committed: an absent half must not block the other one."""
    nobody = Configuration()
    assert joint_committed(nobody, {}) == INDEX_UNBOUNDED
    assert vote_result(nobody, {}) is Ballot.WON
    assert has_quorum(nobody, ())


def test_learners_count_for_nothing() -> None:
    """Neither their logs nor their votes, nor that they are alive."""
    config = Configuration(voters=nodes([1, 2, 3]), learners=nodes([4, 5]))
    everywhere = {NodeId(4): Index(9), NodeId(5): Index(9), NodeId(1): Index(9)}
    assert joint_committed(config, everywhere) == 0
    assert vote_result(config, dict.fromkeys(everywhere, True)) is Ballot.OPEN
    assert not has_quorum(config, everywhere)


def test_a_voter_to_be_demoted_counts_in_the_outgoing_half_alone() -> None:
    """1, 2, 3 become 1, 4, 5 with 2 demoted: 2 helps the old half and not the new one."""
    config = Configuration(voters=nodes([1, 4, 5]), outgoing=nodes([1, 2, 3]), learners_next=nodes([2]))
    held = {NodeId(1): Index(7), NodeId(2): Index(7)}
    assert joint_committed(config, held) == 0
    assert joint_committed(config, held | {NodeId(4): Index(5)}) == 5


def test_a_commit_of_five_voters_costs_little_more_than_sorting_five_numbers() -> None:
    """It is computed per acknowledgement. Both are measured in turns, so that a loaded machine slows both down."""
    config = Configuration(voters=NODES[:5])
    match = {node: Index(node * 1000) for node in NODES}
    counting, sorting = (
        min(times)
        for times in zip(
            *(
                (
                    timeit.timeit(lambda: joint_committed(config, match), number=200),
                    timeit.timeit(lambda: sorted([match[node] for node in NODES[:5]]), number=200),
                )
                for _ in range(50)
            ),
            strict=True,
        )
    )
    assert counting < 8 * sorting
