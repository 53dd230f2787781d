"""Answers about a prepared change: one of each partition, to the attempt that asks."""

from __future__ import annotations

from cmdlog.node.sites.prepared_changes import PreparedChanges

CHANGED, AS_IT_IS = {"at": 7, "change": {}}, {"at": 7, "change": None}


def test_every_partition_answers_once_in_whatever_order() -> None:
    """The first answer counts, and an answer that nobody waits for is none."""
    changes = PreparedChanges()
    changes.await_partitions([0, 1], 7)
    changes.add_report(2, CHANGED)
    changes.add_report(1, CHANGED)
    changes.add_report(1, AS_IT_IS)
    assert changes.reports(7) is None
    changes.add_report(0, AS_IT_IS)
    assert changes.reports(7) == {0: AS_IT_IS, 1: CHANGED}


def test_partition_whose_site_ends_has_no_change() -> None:
    """Neither a later answer, nor what was kept before."""
    changes = PreparedChanges()
    changes.await_partitions([0, 1], 7)
    changes.lose([0, 2], "killed")
    changes.add_report(0, CHANGED)
    changes.add_report(1, AS_IT_IS)
    lost = {"error": "the site of partition 0 ended: killed", "hint": "", "lost": True}
    assert changes.reports(7) == {0: lost, 1: AS_IT_IS}


def test_answers_to_an_earlier_attempt_are_none() -> None:
    """A leader that leads again may have asked for other code before; who asked then gets nothing."""
    changes = PreparedChanges()
    changes.await_partitions([0], 7)
    changes.await_partitions([0], 8)
    changes.add_report(0, CHANGED)
    assert changes.reports(8) is None
    changes.add_report(0, {"at": 8, "change": None})
    assert changes.reports(7) is None
    assert changes.reports(8) == {0: {"at": 8, "change": None}}
