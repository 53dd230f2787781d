"""The plan of the leading node, row by row and over every state that it can reach; when a change of one node is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from cmdlog.cluster.membership.member_plan import (
    ChangeGroups,
    ChangeRisk,
    GiveLeadership,
    Rest,
    StateFaults,
    StateMember,
    Wait,
    is_level,
    next_step,
    risk_of,
    seat_node,
)
from cmdlog.cluster.membership.membership_view import GroupSight, Seat, spare_voters
from cmdlog.raft.configuration import Act, Configuration, nodes
from cmdlog.wal.format.cluster_record import MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.cluster.membership.plan_model import (
    LIVES,
    Model,
    cluster_of,
    joint_over,
    led_by_others,
    member_of,
    outcomes,
    run_to_rest,
)

NEW_LIFE = b"new disk"
ALL_GROUPS = (0, 1, CLUSTER_GROUP)


def with_stage(model: Model, node: int, stage: MemberStage, **fields: object) -> Model:
    """One node has come so far."""
    return model.with_member(replace(member_of(node), stage=stage, **fields))  # type: ignore[arg-type]


def explore(starts: Iterable[Model], moves: Callable[[Model], Iterator[Model]], judge: Callable[[Model], None]) -> int:
    """Every reachable state is judged once; how many there are."""
    waiting = deque(starts)
    seen = {_key(model) for model in waiting}
    while waiting:
        model = waiting.popleft()
        judge(model)
        for following in moves(model):
            if (key := _key(following)) not in seen:
                seen.add(key)
                waiting.append(following)
    return len(seen)


def _key(model: Model) -> object:
    """Failures without end make sequence numbers without end, and nothing depends on them."""
    members = tuple((of.node, of.stage, of.incarnation, of.former) for of in model.members)
    return members, model.groups, model.up, model.leader, model.behind, model.failed


def judge_state(model: Model) -> None:
    """What holds in every state: one node on its way, and no step that live voters could not commit."""
    assert len(model.under_way) <= 1, model
    step = model.step
    if not isinstance(step, ChangeGroups):
        return
    assert model.view.settled
    mixed = set(model.view.mixed())
    assert mixed <= {step.node}, f"{step} while {mixed} are on their way"
    for group in step.groups:
        before = model.view.groups[group]
        for after in (dict(each.groups)[group] for each in outcomes(model, step)):
            assert step.forced or spare_voters(after, before.live) >= 0, f"{step} leaves group {group} without a quorum"
            changed = set(before.configuration.voters) ^ set(after.voters)
            assert changed <= {step.node}
        assert step.act is not Act.REMOVE or step.node != model.leader


def moves_of(model: Model, *, downs: int) -> Iterator[Model]:
    """A step of the plan, wholly or in part; a node that goes or comes; another leader; a learner that has caught up."""
    view = model.view
    led = model.leader in model.up and all(spare_voters(of, model.up) >= 0 for _, of in model.groups)
    if led:
        yield joint_over(model)
        yield from outcomes(model, model.step)
    yield from led_by_others(model)
    for node in view.present():
        if node in model.up and node != model.leader and len(set(view.present()) - model.up) < downs:
            yield replace(model, up=model.up - {node})
        elif node not in model.up:
            yield replace(model, up=model.up | {node})
    for node in model.behind & model.up:
        yield replace(model, behind=model.behind - {node})
    for member in model.members:
        if member.stage is MemberStage.EXPECTED and not model.under_way:
            joined = replace(member, stage=MemberStage.JOINING, incarnation=NEW_LIFE)
            yield replace(model.with_member(joined), up=model.up | {member.node}, behind=model.behind | {member.node})


def operations(model: Model, joiner: int) -> list[Model]:
    """What an operator may begin with."""
    begun = [with_stage(model, node, MemberStage.LEAVING) for node in (1, 2)]
    begun += [with_stage(model, node, MemberStage.LEAVING_OLD) for node in (1, 2)]
    return [*begun, model.with_member(member_of(joiner, MemberStage.EXPECTED, b"")), model]


@pytest.mark.slow
@pytest.mark.parametrize("voters", [3, 4])
def test_every_reachable_state_keeps_a_quorum_and_one_change(voters: int) -> None:
    """Over all states of three and four nodes, two groups, every interruption, one node down."""
    model = cluster_of(voters, groups=(0, CLUSTER_GROUP))
    assert explore(operations(model, voters + 1), lambda each: moves_of(each, downs=1), judge_state) > 300


@pytest.mark.slow
def test_every_reachable_state_ends_well_once_all_nodes_are_up() -> None:
    """From wherever a crash leaves it, the plan comes to its end by itself."""

    def judge(model: Model) -> None:
        if not all(spare_voters(of, model.up | set(model.view.present())) >= 0 for _, of in model.groups):
            return
        whole = replace(model, up=model.up | set(model.view.present()), behind=frozenset())
        rested, step = run_to_rest(whole)
        assert isinstance(step, Rest), f"{step} in {rested}"
        assert not rested.under_way
        present = {member.node for member in rested.members if member.stage is MemberStage.MEMBER}
        for _, configuration in rested.groups:
            assert set(configuration.voters) == present
            assert not configuration.learners
        expected = {member.node for member in rested.members if member.stage is MemberStage.EXPECTED}
        assert rested.failed <= expected

    explore(operations(cluster_of(3, groups=(0, CLUSTER_GROUP)), 4), lambda each: moves_of(each, downs=1), judge)


# -- rows ------------------------------------------------------------------------------------------------------------------


def test_a_silent_voter_is_demoted_in_all_groups_then_declared() -> None:
    """Demotion first, the failure set after it, with the places of the demotions."""
    model = replace(cluster_of(3), up=frozenset({1, 2}))
    step = next_step(model.view)
    assert step == ChangeGroups(Act.ADD_LEARNER, 3, ALL_GROUPS)
    *_, demoted = outcomes(model, step)
    step = next_step(demoted.view)
    assert isinstance(step, StateFaults)
    assert (step.faults.sequence, step.faults.failed, step.faults.author) == (1, (3,), 1)
    assert [group for group, _, _ in step.faults.demotions] == list(ALL_GROUPS)


def test_a_node_that_is_heard_again_votes_before_the_set_is_without_it() -> None:
    """The failure set never says that a node is well which does not vote yet."""
    model = replace(cluster_of(2, learners=1), failed=frozenset({3}), sequence=1, behind=frozenset({3}))
    assert next_step(model.view) == Rest()
    model = replace(model, behind=frozenset())
    step = next_step(model.view)
    assert step == ChangeGroups(Act.ADD_VOTER, 3, ALL_GROUPS)
    *_, voting = outcomes(model, step)
    step = next_step(voting.view)
    assert isinstance(step, StateFaults)
    assert (step.faults.sequence, step.faults.failed) == (2, ())


def test_a_demotion_that_stopped_halfway_is_taken_back_when_the_node_is_heard() -> None:
    """Nothing was declared, so nothing has to be declared away."""
    model = replace(cluster_of(3), up=frozenset({1, 2}))
    halfway = list(outcomes(model, next_step(model.view)))[1]
    assert halfway.view.mixed() == (3,)
    rested, step = run_to_rest(replace(halfway, up=frozenset({1, 2, 3})))
    assert isinstance(step, Rest)
    assert rested.sequence == 0
    assert set(rested.view.seats_of(3)) == {Seat.VOTER}


def test_the_last_majority_is_never_demoted() -> None:
    """Of two voters one is silent: nothing can be committed, and nothing is begun."""
    model = replace(cluster_of(2), up=frozenset({1}))
    assert isinstance(next_step(model.view), Wait)


def test_the_leader_never_demotes_itself() -> None:
    """Whatever the detector says."""
    view = replace(cluster_of(3).view, silent=frozenset({1}))
    assert next_step(view) == Rest()


def test_a_leaving_leader_gives_leadership_away_first() -> None:
    """It would else stop to lead in the middle of its own removal."""
    model = with_stage(cluster_of(3), 1, MemberStage.LEAVING)
    assert isinstance(next_step(model.view), GiveLeadership)


def test_a_removed_node_keeps_the_places_where_it_ended() -> None:
    """The tombstone names an entry of every group."""
    model, step = run_to_rest(with_stage(cluster_of(3), 2, MemberStage.LEAVING))
    removed = next(member for member in model.members if member.node == 2)
    assert isinstance(step, Rest)
    assert removed.stage is MemberStage.REMOVED
    assert set(removed.ended) == set(ALL_GROUPS)


def test_a_replaced_disk_is_former_for_ever_and_in_the_failure_set_until_it_votes() -> None:
    """Between its removal and its vote no failure set is without it."""
    model, _ = run_to_rest(with_stage(cluster_of(3), 2, MemberStage.LEAVING_OLD))
    expected = next(member for member in model.members if member.node == 2)
    assert (expected.stage, expected.incarnation, expected.former) == (MemberStage.EXPECTED, b"", (LIVES[2],))
    joining = model.with_member(replace(expected, stage=MemberStage.JOINING, incarnation=NEW_LIFE))
    joining = replace(joining, up=joining.up | {2}, behind=frozenset({2}))
    step = next_step(joining.view)
    assert isinstance(step, StateFaults)
    assert step.faults.failed == (2,)
    learner, step = run_to_rest(joining)
    assert step == Wait("node 2 has not caught up")
    assert {member.node: member.stage for member in learner.members}[2] is MemberStage.ADMITTED
    voting, step = run_to_rest(replace(learner, behind=frozenset()))
    assert isinstance(step, Rest)
    assert (voting.failed, voting.sequence) == (frozenset(), 2)


def test_a_disk_is_no_learner_before_its_life_is_pinned() -> None:
    """What the former life still says would count as the new one's."""
    model = with_stage(cluster_of(3), 4, MemberStage.JOINING)
    view = replace(model.view, pinned={4: LIVES[3]})
    assert isinstance(next_step(view), Wait)
    assert next_step(model.view) == ChangeGroups(Act.ADD_LEARNER, 4, ALL_GROUPS)


def test_a_new_node_needs_no_failure_set() -> None:
    """No directory of it can be an old one."""
    model, _ = run_to_rest(with_stage(cluster_of(3), 4, MemberStage.JOINING))
    assert model.sequence == 0


def test_a_node_is_a_member_once_it_votes_in_every_group() -> None:
    """Its operation is over then, and another one may begin."""
    model = with_stage(cluster_of(3, learners=1), 4, MemberStage.ADMITTED)
    assert next_step(model.view) == ChangeGroups(Act.ADD_VOTER, 4, ALL_GROUPS)
    voting = with_stage(cluster_of(4), 4, MemberStage.ADMITTED)
    assert next_step(voting.view) == StateMember(member_of(4))


def test_a_failure_is_declared_while_another_node_copies() -> None:
    """A copy takes hours; the detector does not wait for it."""
    model = with_stage(cluster_of(3, learners=1), 4, MemberStage.ADMITTED)
    model = replace(model, behind=frozenset({4}), up=frozenset({1, 2, 4}))
    rested, step = run_to_rest(model)
    assert step == Wait("node 4 has not caught up")
    assert rested.failed == {3}


def test_nothing_is_begun_while_a_configuration_is_changing() -> None:
    """Not even of another group."""
    model = replace(cluster_of(3), up=frozenset({1, 2}))
    joint = Configuration(nodes((1, 2)), outgoing=nodes((1, 2, 3)), learners_next=nodes((3,)), auto_leave=True)
    assert isinstance(next_step(model.with_group(0, joint).view), Wait)


def test_a_forced_removal_overrules_all_but_the_last_voter() -> None:
    """What is at risk is the operator's; a configuration without voters is nobody's."""
    model = replace(cluster_of(3), up=frozenset({1, 2}))
    leaving = with_stage(model, 2, MemberStage.LEAVING)
    assert isinstance(next_step(replace(leaving.view, silent=frozenset())), Wait)
    forced = with_stage(model, 2, MemberStage.LEAVING, forced=True)
    assert next_step(forced.view) == ChangeGroups(Act.REMOVE, 2, ALL_GROUPS, forced=True)
    assert isinstance(seat_node(cluster_of(1, learners=1).view, 1, Seat.OUT, forced=True), Wait)


def test_a_failure_that_nobody_waits_for_is_dropped_with_its_node() -> None:
    """A removed node is in no failure set."""
    model = replace(cluster_of(3), failed=frozenset({4}), sequence=5)
    step = next_step(model.with_member(member_of(4, MemberStage.REMOVED)).view)
    assert isinstance(step, StateFaults)
    assert (step.faults.sequence, step.faults.failed) == (6, ())


def test_a_statement_is_repeated_word_for_word() -> None:
    """A leader that lost its entry states the same one again."""
    model = with_stage(cluster_of(3), 4, MemberStage.JOINING)
    first, second = next_step(model.view), next_step(model.view)
    assert first == second
    assert not isinstance(first, StateMember)


LIVE = frozenset({1, 2})


def sight(voters: int, *, live: frozenset[int], learners: int = 0, whole: frozenset[int] | None = None) -> GroupSight:
    """The first group of a cluster of so many."""
    of = replace(cluster_of(voters, learners=learners), up=live).view.groups[0]
    return of if whole is None else replace(of, whole=whole)


@pytest.mark.parametrize(
    ("act", "node", "of", "risk"),
    [
        (Act.REMOVE, 1, sight(1, live=frozenset({1})), ChangeRisk.LAST_VOTER),
        (Act.REMOVE, 3, sight(3, live=LIVE), None),
        (Act.REMOVE, 2, sight(3, live=LIVE), ChangeRisk.QUORUM),
        (Act.ADD_LEARNER, 2, sight(2, live=frozenset({1})), ChangeRisk.QUORUM),
        (Act.REMOVE, 4, sight(4, live=LIVE), ChangeRisk.QUORUM),  # joint: of the four, two are no majority
        (Act.REMOVE, 3, sight(3, live=LIVE, whole=frozenset({3})), ChangeRisk.LAST_COPY),
        (Act.ADD_LEARNER, 3, sight(3, live=LIVE, whole=frozenset()), ChangeRisk.LAST_COPY),
        (Act.ADD_VOTER, 3, sight(2, live=LIVE, learners=1), ChangeRisk.NOT_LEVEL),
        (Act.ADD_VOTER, 3, sight(2, live=frozenset({1, 2, 3}), learners=1), None),
        (Act.ADD_LEARNER, 9, sight(3, live=LIVE), None),  # takes nobody's vote
    ],
)
def test_every_risk_has_a_name(act: Act, node: int, of: GroupSight, risk: ChangeRisk | None) -> None:
    """One row per case."""
    found = risk_of(of, act, node)
    assert (None if found is None else found[0]) is risk


def test_a_change_begins_in_all_groups_or_in_none() -> None:
    """A group where it is not safe holds the others back, until it is begun somewhere."""
    model = cluster_of(3)
    view = model.view
    unsafe = replace(view.groups[1], live=frozenset({1, 3}))
    assert isinstance(seat_node(replace(view, groups={**view.groups, 1: unsafe}), 3, Seat.OUT), Wait)
    begun = model.with_group(0, cluster_of(2).view.groups[0].configuration).view
    assert seat_node(replace(begun, groups={**begun.groups, 1: unsafe}), 3, Seat.OUT) == ChangeGroups(
        Act.REMOVE, 3, (CLUSTER_GROUP,)
    )


def test_a_seat_that_a_node_has_needs_no_step() -> None:
    """In every group."""
    assert seat_node(cluster_of(3).view, 3, Seat.VOTER) is None
    assert seat_node(cluster_of(3).view, 9, Seat.OUT) is None


def test_a_node_is_level_by_the_groups_where_it_does_not_vote() -> None:
    """A voter that lags is one all the same."""
    assert is_level(replace(cluster_of(3), behind=frozenset({3})).view, 3)
    learner: Model = replace(cluster_of(2, learners=1), behind=frozenset({3}))
    assert not is_level(learner.view, 3)


def test_equal_steps_are_equal() -> None:
    """By what they do."""
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) == ChangeGroups(Act.REMOVE, 3, (0, 1))
    assert ChangeGroups(Act.REMOVE, 3, (0, 1)) != ChangeGroups(Act.REMOVE, 3, (0, 1), forced=True)
    assert Wait("for one") != Wait("for another")
    assert Rest() == Rest()
