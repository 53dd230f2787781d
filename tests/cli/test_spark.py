"""`cmdlog spark demo` compares what Spark has read with its model."""

from __future__ import annotations

from types import ModuleType

from cmdlog.cli.demo.spark import Story, compare_prefix
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from procedures.samples import bank


def test_beginning_of_the_log_is_compared_by_partition() -> None:
    """A call that is missing before the last one, or is counted twice, fails the demo; one on all partitions counts in each."""
    places = [MULTI_PARTITION, *(n % 2 for n in range(2, 9))]
    ids: list[int] = [make_txn_id(millis=n, counter=0, partition=place) for n, place in enumerate(places, start=1)]
    story = Story([(txn_id, "transfer", {}) for txn_id in ids])
    assert compare_prefix({0: (4, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not compare_prefix({0: (3, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not compare_prefix({0: (4, ids[5]), 1: (5, ids[6])}, story)["proved"]


def test_accounts_are_those_of_the_code_up_to_the_moment() -> None:
    """Later calls do not count, and another penalty gives other accounts."""
    opened = (1, "open_account", {"branch": 0, "customer": 0, "checking": 5})
    story = Story([opened, (2, "write_check", {"branch": 0, "customer": 0, "amount": 10})])
    assert isinstance(bank, ModuleType)
    assert story.accounts(bank, 1) == {(0, 0): [0, 5]}
    assert story.accounts(bank) == {(0, 0): [0, 5 - 10 - bank.PENALTY]}
