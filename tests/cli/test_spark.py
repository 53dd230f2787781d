"""`cmdlog spark demo` compares what Spark has read with its model."""

from __future__ import annotations

from cmdlog.cli.demo.spark import Story, _compare
from cmdlog.wal.ids import make_txn_id


def test_beginning_of_the_log_is_compared_by_partition() -> None:
    """A vote that is missing in front of the last one, or is counted twice, fails the demo."""
    ids: list[int] = [make_txn_id(millis=millis, counter=0, partition=millis % 2) for millis in range(1, 9)]
    story = Story(ids, [(1, 1)] * len(ids))
    assert _compare({0: (3, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not _compare({0: (2, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not _compare({0: (3, ids[5]), 1: (5, ids[6])}, story)["proved"]
