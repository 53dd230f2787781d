"""What callers get: replies of all partitions become one."""

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


LOST, RESTORED = UnknownOutcome("lost"), NotReady("restored")
ABORTED, FAILED = CallOutcome(1, 3, b'{"code":"x"}'), CallOutcome(2, 3, b'{"type":"x"}')


@pytest.mark.parametrize(
    ("replies", "read", "combined"),
    [
        ((ABORTED, RESTORED, LOST), False, RESTORED),  # if one partition does not know, the call is unknown
        ((OK[0], ABORTED, FAILED), False, ABORTED),  # several failures give that of the lowest partition
        ((RESTORED, OK[1], FAILED), True, FAILED),  # a part that ended its site takes those of other partitions with it
        ((OK[0], OK[1], RESTORED), True, RESTORED),  # nothing else is known of it
    ],
)
def test_what_is_not_well_everywhere_has_one_reply(replies: tuple[Reply, ...], read: bool, combined: Reply) -> None:
    """A refusal comes before an outcome, of a read after a failure, which a client must not repeat; whoever answers first."""
    for order in itertools.permutations(range(3)):
        got: list[Reply] = []
        slots = CombinedReplies(3, got.append, read=read).slots()
        for n in order:
            slots[n](replies[n])
        assert got == [combined]


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
