"""Answers of sites that were asked to prepare a change."""

from __future__ import annotations

from cmdlog.node.sites.prepared_changes import PreparedChanges


def test_each_partition_answers_once() -> None:
    """By its report or by the end of its site, whichever comes first; others are not heard."""
    changes = PreparedChanges()
    changes.await_partitions(range(2))
    changes.add_report(0, {"change": None, "steps": []})
    changes.lose([0, 1], "killed")
    changes.add_report(1, {"change": None, "steps": []})
    changes.add_report(7, {"change": None, "steps": []})
    assert changes.complete
    assert changes.reports() == {
        0: {"change": None, "steps": []},
        1: {"error": "the site of partition 1 ended: killed", "hint": ""},
    }
    changes.await_partitions([1])
    assert not changes.complete
    assert changes.reports() == {}
