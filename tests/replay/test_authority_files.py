"""Authority over real directories: the classic stories of failure, each played to its end, then judged by the files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import ForeignDirectory, ForkedFaultLogs, TwoCopies
from replay.log.collect_evidence import gather
from replay.log.evidence import StatedConfiguration
from replay.plan.authority import Use, decide
from tests.replay import damage
from tests.replay.histories import check_seed
from tests.replay.historycheck import FILES, check_proved, is_complete, judged
from tests.replay.historymembers import STAGES, History


def work(history: History, *, rounds: int = 2, to: Sequence[int] | None = None) -> None:
    """Acknowledged deposits on every partition."""
    for partition in range(history.partitions):
        for _ in range(rounds):
            assert history.deposits(partition) is not None
        assert history.spread(partition, to)


# -- the contract's own example ------------------------------------------------------------------------------------------------


def test_demotion_that_is_committed_leaves_the_acknowledged_entry_with_the_others(tmp_path: Path) -> None:
    """x is on A and B; B is declared failed, for which C must have caught up; A's disk dies: C alone has a word, and holds x."""
    history = History(tmp_path / "h", seed=1)
    work(history, to=[2])
    history.nodes[2].stop(orderly=False)
    assert history.declare_failed(2)
    work(history, to=[3])
    history.lose_disk(1)
    history.finish()
    verdict = judged(history)
    for of in verdict.groups.values():
        assert of.chosen == history.directory_of(3)
        assert of.uses[history.directory_of(2)][0] is Use.DISCARDED
        assert of.uses[history.directory_of(1)][0] is Use.UNUSABLE
        assert of.proved, of.why  # one of two voters: every majority of two is both
        assert is_complete(history, of)


def test_fault_log_alone_discards_no_log(tmp_path: Path) -> None:
    """The same, but B was only written into the fault logs: C lags, no demotion is committed, and B, which holds x, is chosen."""
    history = History(tmp_path / "h", seed=2)
    work(history, to=[2])
    history.write_faults({2}, [1, 3], [], "node 2 does not answer")
    history.lose_disk(1)
    history.finish()
    verdict = check_proved(history)
    assert {of.chosen for of in verdict.groups.values()} <= {history.directory_of(2), history.directory_of(3)}
    assert all(verdict.groups[p].chosen == history.directory_of(2) for p in (0, 1))


def test_two_nodes_that_call_each_other_invalid(tmp_path: Path) -> None:
    """A and C log that B failed; B comes back, A fails, everything stops: A says B is invalid, B says A is; B and C are right."""
    history = History(tmp_path / "h", seed=3)
    history.nodes[2].stop(orderly=False)
    assert history.declare_failed(2)
    work(history, to=[3])
    assert all(history.elect(group, 3) for group in history.groups)
    assert history.rejoin(2, "promoted")
    history.nodes[1].stop(orderly=False)
    history.write_faults([], [2], history.promotions(2), "node 2 is complete")
    history.nodes[2].copying = False
    assert history.declare_failed(1)
    work(history, to=[2])
    history.finish()
    faults = {number: history.nodes[number].faults.failed for number in (1, 2, 3)}
    assert (faults[1], faults[2], faults[3]) == (frozenset({2}), frozenset({1}), frozenset({1}))
    for given in ((1, 2, 3), (2, 3), (1, 2), (1, 3)):
        verdict = check_proved(history, *given)
        assert history.directory_of(1) not in {of.chosen for of in verdict.groups.values()}


def test_two_generations_of_failure_that_do_not_overlap(tmp_path: Path) -> None:
    """4 and 5 failed and came back, then 1 and 2 failed: whatever 1 and 2 remember, 3, 4 and 5 are right."""
    history = History(tmp_path / "h", nodes=5, seed=4)
    for number in (4, 5):
        history.nodes[number].stop(orderly=False)
        assert history.declare_failed(number)
    work(history)
    for number in (4, 5):
        assert history.rejoin(number)
    work(history)
    assert all(history.elect(group, 3) for group in history.groups)
    for number in (1, 2):
        history.nodes[number].stop(orderly=False)
        assert history.declare_failed(number)
    work(history)
    history.finish()
    assert check_proved(history).failed == {1, 2}
    assert check_proved(history, 1, 2, 3, 4).failed == {1, 2}
    verdict = judged(history, 1, 2)
    assert not any(of.proved and not is_complete(history, of) for group, of in verdict.groups.items())


# -- old copies, forks, foreigners ---------------------------------------------------------------------------------------------


def test_node_put_back_from_an_old_copy_does_not_count(tmp_path: Path) -> None:
    """Its fault log ends before it failed and came back, and says so to who reads the others'."""
    history = History(tmp_path / "h", seed=5)
    work(history)
    copy = history.nodes[3].copy_to(str(tmp_path))
    history.nodes[3].stop()
    assert history.declare_failed(3)
    assert history.rejoin(3)
    work(history, to=[3])
    history.restore_copy(3, copy)
    history.finish()
    check_proved(history)
    verdict = judged(history, 2, 3)
    for of in verdict.groups.values():
        assert of.uses[copy][0] is Use.UNUSABLE
        assert not of.proved


def test_old_copy_with_failures_of_its_own_does_not_count(tmp_path: Path) -> None:
    """A copy whose fault log speaks of other failures, long healed, is as old as one without any."""
    history = History(tmp_path / "h", nodes=5, seed=6)
    assert all(history.elect(group, 3) for group in history.groups)
    history.nodes[1].stop()
    assert history.declare_failed(1)
    copy = history.nodes[4].copy_to(str(tmp_path))
    assert history.rejoin(1)
    history.nodes[4].stop()
    assert history.declare_failed(4)
    assert history.rejoin(4)
    work(history)
    history.restore_copy(4, copy)
    history.finish()
    verdict = check_proved(history)
    assert all(of.uses[copy][0] is Use.UNUSABLE for of in verdict.groups.values())


def test_who_declared_the_failure_may_lack_the_record(tmp_path: Path) -> None:
    """The author may die before it writes what the cluster has committed. An old copy of its directory looks like that, too, and
    the others still prove what is whole."""
    history = History(tmp_path / "h", nodes=5, seed=18)
    copy = history.nodes[1].copy_to(str(tmp_path))
    history.nodes[5].stop()
    assert history.declare_failed(5)
    work(history)
    history.restore_copy(1, copy)
    history.finish()
    verdict = check_proved(history)
    assert not any(of.uses[copy][0] is Use.CHOSEN for of in verdict.groups.values())


def test_forked_fault_logs_are_refused_naming_both(tmp_path: Path) -> None:
    """Two nodes that wrote different first records are two lineages, also where one of them has gone on."""
    history = History(tmp_path / "h", seed=7)
    history.nodes[1].faults.append(failed={2}, term=1, reason="split")
    history.nodes[3].faults.append(failed={2}, term=2, reason="brain")
    history.nodes[3].faults.append(failed={1, 2}, term=2, reason="brain")
    history.finish()
    with pytest.raises(ForkedFaultLogs) as refused:
        judged(history)
    assert history.directory_of(1) in str(refused.value)
    assert history.directory_of(3) in str(refused.value)


def test_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """H2: the clusters' ids differ."""
    one, other = History(tmp_path / "a", seed=8), History(tmp_path / "b", seed=9)
    one.finish()
    other.finish()
    with pytest.raises(ForeignDirectory):
        decide([gather(FILES, one.directory_of(1)), gather(FILES, other.directory_of(2))])


def test_two_copies_of_one_node_are_refused(tmp_path: Path) -> None:
    """The same node twice, of which one is older."""
    history = History(tmp_path / "h", seed=10)
    copy = history.nodes[2].copy_to(str(tmp_path))
    work(history)
    history.finish()
    with pytest.raises(TwoCopies) as refused:
        decide([gather(FILES, directory) for directory in (*history.directories, copy)])
    assert copy in str(refused.value)


# -- partitions apart, growth and shrinkage -------------------------------------------------------------------------------------


def test_only_copy_of_a_partition_may_be_on_a_node_that_others_discarded(tmp_path: Path) -> None:
    """B is demoted in the cluster group and partition 0, not yet in partition 1; A's disk dies: B decides for partition 1."""
    history = History(tmp_path / "h", seed=11)
    work(history)
    history.deposits(1)
    assert history.spread(1, [2])
    assert history.demote(2, CLUSTER_GROUP, [3])
    assert history.demote(2, 0, [3])
    history.lose_disk(1)
    history.finish()
    verdict = check_proved(history)
    assert [verdict.groups[p].chosen for p in (0, 1)] == [history.directory_of(3), history.directory_of(2)]
    assert verdict.groups[0].uses[history.directory_of(2)][0] is Use.DISCARDED


def test_superseded_suffix_is_not_chosen_however_long(tmp_path: Path) -> None:
    """A leader that was cut off holds more entries of an older term."""
    history = History(tmp_path / "h", seed=12)
    work(history)
    for _ in range(9):
        history.deposits(0)
    assert history.elect(0, 2, among=[2, 3])
    history.deposits(0)
    assert history.spread(0, [3])
    history.finish()
    assert check_proved(history).groups[0].chosen in (history.directory_of(2), history.directory_of(3))


def test_cluster_that_has_grown_needs_a_majority_of_what_it_is_now(tmp_path: Path) -> None:
    """Three became five: three directories prove it, also when two nodes never come back; two of the old ones do not."""
    history = History(tmp_path / "h", seed=13)
    work(history)
    assert history.add_node(4)
    assert history.add_node(5)
    work(history, to=[4, 5])
    history.finish()
    check_proved(history)
    check_proved(history, 3, 4, 5)
    check_proved(history, 2, 3, 4)
    verdict = judged(history, 2, 3)
    assert not any(verdict.groups[p].proved for p in (0, 1))


def test_removed_nodes_have_no_word(tmp_path: Path) -> None:
    """Five became three: the directories of those that left are discarded, and prove nothing alone."""
    history = History(tmp_path / "h", nodes=5, seed=14)
    work(history)
    for number in (4, 5):
        assert history.remove_node(number)
    work(history, to=[2])
    history.finish()
    for of in check_proved(history).groups.values():
        assert {of.uses[history.directory_of(n)][0] for n in (4, 5)} == {Use.DISCARDED}
    check_proved(history, 1, 2)
    check_proved(history, 2, 3, 4, 5)
    verdict = judged(history, 3, 4, 5)
    assert not any(of.proved for of in verdict.groups.values())


def test_joint_configuration_needs_both_halves(tmp_path: Path) -> None:
    """While {1, 2, 3} becomes {3, 4, 5}, a majority of one half alone proves nothing."""
    history = History(tmp_path / "h", seed=15)
    assert history.add_node(4, promote=False)
    assert history.add_node(5, promote=False)
    for group in history.groups:
        assert history.configure(group, {3, 4, 5}, (), {1, 2, 3}) is not None
        assert history.spread(group)
    work(history)
    history.finish()
    check_proved(history)
    check_proved(history, 1, 2, 4, 5)
    check_proved(history, 2, 3, 4)
    for given in ((1, 2, 3), (3, 4, 5), (4, 5)):
        assert not any(of.proved for of in judged(history, *given).groups.values())


@pytest.mark.parametrize("stage", STAGES)
def test_node_that_is_filled_counts_from_the_end_on(tmp_path: Path, stage: str) -> None:
    """With one other voter it completes a majority of three only when the set without it is written; before it is no voter."""
    history = History(tmp_path / "h", seed=16)
    work(history)
    assert history.declare_failed(3)
    assert history.rejoin(3, stage)
    work(history, to=[2])
    history.finish()
    check_proved(history)
    check_proved(history, 1, 2)
    verdict = judged(history, 2, 3)
    for of in verdict.groups.values():
        assert of.chosen == history.directory_of(2)
        assert of.proved == (stage != "promoted"), (stage, of.why)
        assert is_complete(history, of)


def test_configuration_without_voters_proves_nothing(tmp_path: Path) -> None:
    """No majority of nobody is met by every log: such a configuration is none."""
    history = History(tmp_path / "h", seed=19)
    history.finish()
    evidence = gather(FILES, history.directory_of(1))
    nobody = (StatedConfiguration(1, 1, frozenset()),)
    groups = {number: replace(of, configurations=nobody) for number, of in evidence.groups.items()}
    verdict = decide([replace(evidence, groups=groups)])
    assert not any(of.proved for of in verdict.groups.values())


# -- any history ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 24, 8))
def test_what_is_proved_is_complete_in_any_history(tmp_path: Path, first: int) -> None:
    """All directories prove everything, and whatever some of them prove holds all that was acknowledged, damage or not."""
    for seed in range(first, first + 8):
        _, proved, judged_groups = check_seed(tmp_path / str(seed), seed)
        assert proved <= judged_groups


@pytest.mark.slow
@pytest.mark.parametrize("seed", [58, 75])
def test_old_copy_that_one_group_shows_counts_in_none(tmp_path: Path, seed: int) -> None:
    """Histories in which another group was proved by the very copy: what is proved is complete."""
    check_seed(tmp_path / "h", seed)


@pytest.mark.parametrize("lost", [0, 1])
def test_replaced_entries_beside_a_hole_are_not_taken_for_committed(tmp_path: Path, lost: int) -> None:
    """Two entries of an old term end segment 1, and segment 2 replaces them: without either segment they are no second truth."""
    history = History(tmp_path / "h", seed=17, segment_bytes=32 << 10)
    for _ in range(2):
        assert history.deposits(0) is not None
    replaced = history.nodes[1].held[0].last_index
    into_segment(history, 2)
    assert history.elect(0, 2, among=[2, 3])
    work(history)
    assert history.truth.last(0) == replaced
    assert history.snapshot(2, 0) is not None
    work(history)
    into_segment(history, 4)
    history.finish()
    damage.delete(damage.segments(history.directory_of(1))[lost])
    check_proved(history)


def into_segment(history: History, count: int) -> None:
    """Partition 1 goes on until the first node's log has that many segments."""
    while len(damage.segments(history.directory_of(1))) < count:
        work_on = history.deposits(1)
        assert work_on is not None
        assert history.spread(1)
        history.nodes[1].flush()
