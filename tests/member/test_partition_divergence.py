"""A partition that diverged: known durably first, then shown, and it keeps the node from leading; also after a restart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.member.partition_divergence import Divergences
from cmdlog.wal.divergence_file import DivergenceFile
from tests.wal.sim.simfiles import SimFiles


class Rig:
    """The parts that are told, in order."""

    def __init__(self) -> None:
        self.files = SimFiles(1)
        self.files.mkdir("/cluster")
        self.told: list[Any] = []
        self.desk: Any = SimpleNamespace(
            begin_divergence=lambda partition, why: self.told.append((partition, why, self.stored())),
            end_divergence=lambda partition: self.told.append((partition, self.stored())),
        )

    def stored(self) -> list[int]:
        """Partitions that a restart would know of."""
        return list(DivergenceFile(self.files, "/").by_partition())

    def open(self) -> Divergences:
        file = DivergenceFile(self.files, "/")
        return Divergences(file, self.desk, describe=lambda _, index: f"entry {index} (put)")


@pytest.fixture
def rig() -> Rig:
    """A node with two partitions."""
    return Rig()


def test_divergence_is_durable_before_anything_follows_from_it(rig: Rig) -> None:
    """The call is named, and the command that finds the row."""
    rig.open().begin_divergence(1, 7)
    ((partition, why, stored),) = rig.told
    assert (partition, stored) == (1, [1])
    assert "entry 7 (put)" in why
    assert "cmdlog diff" in why


def test_a_history_that_the_leader_has_not_is_kept_and_said(rig: Rig) -> None:
    """As a divergence, with what an operator is to keep."""
    rig.open().begin_contradiction(1, 7)
    ((partition, why, stored),) = rig.told
    assert (partition, stored) == (1, [1])
    assert "committed entry 7, which the leader has not" in why
    assert "keep a copy" in why


def test_agreement_of_a_majority_ends_it(rig: Rig) -> None:
    """A restart knows nothing of it."""
    divergences = rig.open()
    divergences.begin_divergence(1, 7)
    rig.told.clear()
    divergences.end_divergence(1, 7)
    assert rig.told == [(1, [])]


def test_restart_keeps_the_partition_where_it_is(rig: Rig) -> None:
    """Nothing of it is run, and its calls are refused, before the node speaks with anybody."""
    rig.open().begin_divergence(1, 7)
    rig.told.clear()
    marks = ExecutedMarks(range(2), diverged=print)
    rig.open().restore_divergences(marks)
    assert [told[0] for told in rig.told] == [1]
    assert marks.divergences() == {1: 7}
    marks.lead()
    assert marks.add(1, [(8, b"")], known=8) == []
    assert marks.add(0, [(8, b"")], known=8) == [(8, b"")]
