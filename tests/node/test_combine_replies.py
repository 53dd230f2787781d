"""Replies of all partitions become one."""

from __future__ import annotations

import itertools
import threading

import orjson
import pytest

from cmdlog.node.outcome import CallOutcome, CombinedReplies, NotReady, Reply, UnknownOutcome

OK = [CallOutcome(0, 5, b'"a"'), CallOutcome(0, 9, b"2"), CallOutcome(0, 7, b"null")]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_results_stand_in_partition_order(order: tuple[int, ...]) -> None:
    """Whoever answers first, the list is in the order of the partitions, and `done` is called once, with the last."""
    got: list[Reply] = []
    slots = CombinedReplies(3, got.append).slots()
    for place, n in enumerate(order):
        assert len(got) == 0, place
        slots[n](OK[n])
    assert got == [CallOutcome(0, 9, b'["a",2,null]')]


def test_a_refusal_comes_before_an_outcome() -> None:
    """If one partition does not know, the call is unknown, whatever the others did."""
    got: list[Reply] = []
    slots = CombinedReplies(3, got.append).slots()
    refusal = UnknownOutcome("lost")
    slots[0](CallOutcome(1, 3, b'{"code":"x"}'))
    slots[2](refusal)
    slots[1](NotReady("restored"))
    assert len(got) == 1
    assert isinstance(got[0], NotReady)


def test_of_a_read_a_failure_comes_before_a_refusal() -> None:
    """A part that ended its site takes those of other partitions with it, and a client would repeat what is refused."""
    got: list[Reply] = []
    slots = CombinedReplies(3, got.append, read=True).slots()
    slots[0](NotReady("restored"))
    slots[2](CallOutcome(2, 3, b'{"type":"x"}'))
    slots[1](OK[1])
    assert got == [CallOutcome(2, 3, b'{"type":"x"}')]


def test_read_without_a_failure_is_refused_with_its_part() -> None:
    """Nothing else is known of it."""
    got: list[Reply] = []
    refusal = NotReady("restored")
    slots = CombinedReplies(2, got.append, read=True).slots()
    slots[0](OK[0])
    slots[1](refusal)
    assert got == [refusal]


def test_the_first_failure_in_partition_order_speaks() -> None:
    """Several aborts give that of the lowest partition."""
    got: list[Reply] = []
    slots = CombinedReplies(3, got.append).slots()
    slots[2](CallOutcome(2, 3, b'"later"'))
    slots[1](CallOutcome(1, 3, b'"first"'))
    slots[0](OK[0])
    assert got == [CallOutcome(1, 3, b'"first"')]


@pytest.mark.parametrize(
    ("failed", "says"),
    [
        ({1: "no"}, "no (on partition 1 of 3; the others kept their changes)"),
        ({1: "no", 2: "never"}, "no (on partitions 1, 2 of 3; the others kept their changes)"),
        ({0: "", 2: "x"}, "(on partitions 0, 2 of 3; the others kept their changes)"),
        ({0: "no", 1: "no", 2: "no"}, "no"),
    ],
)
def test_where_partitions_decide_for_themselves_the_failed_are_named(failed: dict[int, str], says: str) -> None:
    """The first failure speaks, and says where the call failed unless that is everywhere."""
    got: list[Reply] = []
    for n, slot in enumerate(CombinedReplies(3, got.append, each=True).slots()):
        slot(CallOutcome(2, n, orjson.dumps({"type": "E", "message": failed[n]})) if n in failed else OK[n])
    assert isinstance(got[0], CallOutcome)
    assert got[0].status == 2
    assert orjson.loads(got[0].body) == {"type": "E", "message": says}


def test_threads_may_reply_at_once() -> None:
    """Eight partitions replying from eight threads give one reply, each time."""
    for _ in range(50):
        got: list[Reply] = []
        slots = CombinedReplies(8, got.append).slots()
        barrier = threading.Barrier(8)

        def reply(n: int) -> None:
            barrier.wait()  # noqa: B023 - joined below
            slots[n](CallOutcome(0, n, b"%d" % n))  # noqa: B023 - joined below

        threads = [threading.Thread(target=reply, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [CallOutcome(0, 7, b"[0,1,2,3,4,5,6,7]")]
