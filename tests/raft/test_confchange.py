"""The changer: what it makes of a configuration, what it refuses, and that consecutive configurations cannot decide apart."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.raft.confchange import apply_change, check_base, enter_joint, leave_joint
from cmdlog.raft.configuration import (
    MEMBERS_MAX,
    NODE_ID_MAX,
    Act,
    Configuration,
    MemberChange,
    NodeId,
    nodes,
)
from cmdlog.raft.errors import BadChange, ChangeRefused, Refusal
from cmdlog.raft.quorum import has_quorum

NODES = tuple(NodeId(number) for number in range(1, 7))
STEPS = st.lists(
    st.builds(MemberChange, st.sampled_from(Act), st.sampled_from(NODES)),
    min_size=1,
    max_size=4,
    unique_by=lambda step: step.node,
).map(tuple)
LEAVE = "leave"
CHANGES = st.one_of(st.just(LEAVE), STEPS)
Change = str | tuple[MemberChange, ...]


def step(word: str) -> MemberChange:
    """`+4` adds a voter, `~4` a learner, `-4` removes."""
    return MemberChange({"+": Act.ADD_VOTER, "~": Act.ADD_LEARNER, "-": Act.REMOVE}[word[0]], NodeId(int(word[1:])))


def change(*words: str) -> tuple[MemberChange, ...]:
    """The steps that the words say."""
    return tuple(map(step, words))


def changed(config: Configuration, wanted: Change) -> Configuration:
    """After the steps, or after the end of a joint configuration. Raises: BadChange."""
    return leave_joint(config) if isinstance(wanted, str) else apply_change(config, wanted)


def voters(*members: int, learners: tuple[int, ...] = ()) -> Configuration:
    """A configuration that is not joint."""
    return Configuration(voters=nodes(members), learners=nodes(learners))


def decide_apart(one: Configuration, other: Configuration) -> bool:
    """Whether some nodes could decide under `one` while all the others decide under `other`. Every split is tried."""
    everybody = frozenset({*one.members(), *other.members()})
    splits = (frozenset(part) for size in range(len(everybody) + 1) for part in itertools.combinations(everybody, size))
    return any(has_quorum(one, part) and has_quorum(other, everybody - part) for part in splits)


def test_nodes_that_decide_apart_are_found() -> None:
    """The judge itself: two voters replaced at once is the mistake that joint configurations exist for."""
    assert decide_apart(voters(1, 2, 3), voters(3, 4, 5))
    assert not decide_apart(voters(1, 2, 3), voters(1, 2, 3, 4))


def decides_unseen(here: Configuration, following: Configuration) -> frozenset[NodeId] | None:
    """Nodes that can decide under the next configuration without a majority of any half of this one; None when none can."""
    everybody = sorted({*here.members(), *following.members()})
    halves = [Configuration(voters=half) for half in (here.voters, here.outgoing) if half]
    for size in range(len(everybody) + 1):
        for part in map(frozenset, itertools.combinations(everybody, size)):
            if has_quorum(following, part) and not any(has_quorum(half, part) for half in halves):
                return part
    return None


def test_decisions_that_majorities_of_before_cannot_see_are_found() -> None:
    """The judge itself: from an even number of voters one more, or one less, can decide beside logs that meet every majority."""
    assert decides_unseen(voters(1, 2), voters(1, 2, 3)) == frozenset(nodes([1, 3]))
    assert decides_unseen(voters(1, 2), voters(1)) == frozenset(nodes([1]))
    assert decides_unseen(voters(1, 2, 3, 4), voters(1, 2, 3)) == frozenset(nodes([1, 2]))
    assert decides_unseen(voters(1, 2, 3), voters(1, 2, 3, 4)) is None
    assert decides_unseen(voters(1, 2, 3), voters(1, 2)) is None


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=12))
@settings(max_examples=60, deadline=None)
def test_consecutive_configurations_never_decide_apart(changes: list[Change]) -> None:
    """Along any sequence of changes, quorums of neighbours share a node, and the later one holds a majority of a half before."""
    config = voters(1, 2, 3)
    for wanted in changes:
        try:
            following = changed(config, wanted)
        except BadChange:
            continue
        assert not decide_apart(config, following)
        assert decides_unseen(config, following) is None
        assert following != config
        config = following


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=20))
@settings(max_examples=40, deadline=None)
def test_any_sequence_of_changes_keeps_the_invariants(changes: list[Change]) -> None:
    """Each result is built anew, so its own checks hold; beyond them, it has voters and nobody has two roles."""
    config = voters(1, 2, 3)
    for wanted in changes:
        try:
            config = changed(config, wanted)
        except BadChange:
            continue
        assert config == Configuration.from_bytes(config.to_bytes())
        assert config.voters
        assert not set(config.learners) & {*config.voters, *config.outgoing}
        assert set(config.learners_next) <= set(config.outgoing) - set(config.voters)
        assert config.joint or not (config.learners_next or config.auto_leave)


@pytest.mark.slow
@given(STEPS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_steps_means_nothing(steps: tuple[MemberChange, ...], chance: random.Random) -> None:
    """The same steps in another order give the same configuration, or are refused alike."""

    def outcome(ordered: tuple[MemberChange, ...]) -> Configuration | None:
        try:
            return apply_change(voters(1, 2, 3, learners=(4,)), ordered)
        except BadChange:
            return None

    assert outcome(steps) == outcome(tuple(chance.sample(steps, len(steps))))


@pytest.mark.slow
@given(st.sets(st.sampled_from(NODES), min_size=1), st.sets(st.sampled_from(NODES), min_size=1), st.booleans())
@settings(deadline=None)
def test_any_voters_become_any_others_by_a_joint_change(before: set[NodeId], after: set[NodeId], demote: bool) -> None:
    """Whatever the sizes, even ones too: the old voters decide along until they leave."""
    target = voters(*after, learners=tuple(sorted(before - after)) if demote else ())
    joint = enter_joint(voters(*before), target)
    assert (joint.voters, joint.outgoing) == (nodes(after), nodes(before))
    assert joint.learners_next == (nodes(before - after) if demote else ())
    assert leave_joint(joint) == target


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["+4"], voters(1, 2, 3, 4)),
        (["-3"], voters(1, 2)),
        (["~4"], voters(1, 2, 3, learners=(4,))),
        (["~3"], voters(1, 2, learners=(3,))),
        (["~4", "~5", "+6"], voters(1, 2, 3, 6, learners=(4, 5))),
    ],
)
def test_a_change_of_one_voter_takes_one_step(words: list[str], expected: Configuration) -> None:
    """Any number of learners may come along: they are in no majority."""
    assert apply_change(voters(1, 2, 3), change(*words)) == expected


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("word", ["+9", "-1", "~1"])
def test_one_voter_of_an_even_number_changes_jointly(count: int, word: str) -> None:
    """From an odd number in one step, from an even one through both majorities; nothing decides unseen on the way."""
    before = voters(*range(1, count + 1), learners=(9,))
    if word != "+9" and count == 1:
        return  # the last voter stays
    following = apply_change(before, change(word))
    assert following.joint == following.auto_leave == (count % 2 == 0)
    assert decides_unseen(before, following) is None
    if following.joint:
        assert following.outgoing == before.voters
        assert decides_unseen(following, leave_joint(following)) is None


def test_learners_of_an_even_number_of_voters_change_in_one_step() -> None:
    """They are in no majority."""
    assert apply_change(voters(1, 2), change("~3")) == voters(1, 2, learners=(3,))
    assert apply_change(voters(1, 2, learners=(3,)), change("-3")) == voters(1, 2)


def test_a_change_of_two_voters_goes_through_both_majorities() -> None:
    """Replacing a voter changes two: the joint configuration ends itself."""
    joint = apply_change(voters(1, 2, 3), change("+4", "-3"))
    assert joint == Configuration(voters=nodes([1, 2, 4]), outgoing=nodes([1, 2, 3]), auto_leave=True)
    assert leave_joint(joint) == voters(1, 2, 4)


def test_a_demoted_voter_waits_until_the_joint_configuration_ends() -> None:
    """It votes in the outgoing half meanwhile, so it must not count as a learner yet."""
    joint = apply_change(voters(1, 2, 3), change("~3", "+4"))
    assert (joint.learners, joint.learners_next, joint.is_voter(NodeId(3))) == ((), (3,), True)
    assert leave_joint(joint) == voters(1, 2, 4, learners=(3,))


def test_a_learner_is_promoted() -> None:
    """It is no learner any more, in one step and in a joint change."""
    before = voters(1, 2, 3, learners=(4,))
    assert apply_change(before, change("+4")) == voters(1, 2, 3, 4)
    joint = apply_change(before, change("+4", "-3"))
    assert (joint.voters, joint.learners) == ((1, 2, 4), ())


def test_the_mark_of_a_forced_configuration_stays() -> None:
    """Entries may be missing since; no later change can make that untrue."""
    forced = Configuration(voters=nodes([1]), forced=True)
    assert apply_change(forced, change("+2")).forced
    assert leave_joint(apply_change(forced, change("+2", "+3"))).forced


@pytest.mark.parametrize(
    ("config", "wanted", "named"),
    [
        (voters(1, 2, 3), change("+3"), "node 3 is a voter already"),
        (voters(1, 2, 3, learners=(4,)), change("~4"), "node 4 is a learner already"),
        (voters(1, 2, 3), change("-9"), "node 9 is not a member"),
        (voters(1, 2, 3), change("+4", "-4"), "node 4 is named by two steps"),
        (voters(1, 2, 3), change("+0"), "node 0 is outside"),
        (voters(1, 2, 3), change(f"+{NODE_ID_MAX + 1}"), f"node {NODE_ID_MAX + 1} is outside"),
        (voters(7), change("-7"), "no voter would be left without 7"),
        (voters(1, 2), change("~1", "-2"), "no voter would be left without 1, 2"),
        (voters(1, 2, 3), LEAVE, "no joint configuration to leave: voters 1, 2, 3"),
        (Configuration(), change("+5"), "without voters"),
        (Configuration(voters=nodes([1, 2]), outgoing=nodes([1, 3])), change("+5"), "joint, with outgoing voters 1, 3"),
        (voters(*range(1, MEMBERS_MAX + 1)), change(f"~{MEMBERS_MAX + 1}"), f"{MEMBERS_MAX + 1} members with {MEMBERS_MAX + 1}"),
        (
            voters(*range(1, MEMBERS_MAX + 1)),
            change(f"+{MEMBERS_MAX + 1}", "-1"),
            f"{MEMBERS_MAX + 1} members with {MEMBERS_MAX + 1}, 1",
        ),
    ],
)
def test_a_senseless_change_is_refused_by_name(config: Configuration, wanted: Change, named: str) -> None:
    """The reason names the node, so that who asked can see what it was wrong about."""
    with pytest.raises(BadChange) as refused:
        changed(config, wanted)
    assert named in str(refused.value)


def test_a_change_made_for_another_configuration_is_refused() -> None:
    """Compare-and-set: two operators who saw the same members cannot both remove one."""
    seen = voters(1, 2, 3, 4, 5)
    check_base(seen, seen)
    with pytest.raises(ChangeRefused) as refused:
        check_base(apply_change(seen, change("-5")), seen)
    assert refused.value.reason is Refusal.STALE_BASE
