"""Authority over real directories: stories of failure, played to their end, and any history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

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


# -- partitions apart, growth and shrinkage -------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("first", range(0, 16, 8))
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
