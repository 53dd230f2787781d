"""Idempotency keys in another number of partitions: copied, merged, moved in time, and never forgotten."""

from __future__ import annotations

from pathlib import Path

from cmdlog.node.outcome import CallOutcome, CombinedReplies, Reply
from procedures.idempotency.key_table import Figures, KeyTable, stored_keys
from procedures.idempotency.known_outcome import KeyPolicy, time_mark
from procedures.storage.state import PartitionState
from replay.repartition.repartition import reshape
from replay.state.trust import state_path
from tests.replay.shapes import FILES, TXN, Crafted, known, made, refusal


def test_keys_are_copied_to_every_partition_that_may_be_asked(tmp_path: Path) -> None:
    """Of 2 partitions made 3: the middle one knows the keys of both, the outer ones those of their own."""
    node = Crafted(tmp_path, 2)
    one, two, three = (bytes([n]) * 16 for n in (1, 2, 3))
    node.answered(0, {one: b"1", two: b"2"})
    node.answered(1, {three: b"3"})
    made(node, 3)
    assert [known(node.directory, p) for p in range(3)] == [
        {one: b"1", two: b"2"},
        {one: b"1", two: b"2", three: b"3"},
        {three: b"3"},
    ]


def test_copies_of_a_key_become_one_again(tmp_path: Path) -> None:
    """Merged rows hold each key once, and an outcome that any copy has kept."""
    policy = KeyPolicy(window_ms=1000)
    node = Crafted(tmp_path, 2, policy=policy)
    keys = [bytes([n]) * 8 + bytes(8) for n in range(1, 6)]
    node.answered(0, {key: b"%d" % at for at, key in enumerate(keys[:4])})
    node.answered(0, {}, clock=2000)  # outcomes of partition 0 are dropped
    node.answered(1, {key: b"%d" % at for at, key in enumerate(keys) if at >= 2})
    node.answered(1, {keys[0]: b"0"})
    made(node, 1)
    assert known(node.directory, 0) == {keys[0]: b"0", keys[1]: None, keys[2]: b"2", keys[3]: b"3", keys[4]: b"4"}


def test_rows_keep_what_is_left_of_their_time_and_floors_are_the_highest(tmp_path: Path) -> None:
    """Activity clocks of the old partitions differ; dues are moved with them, and no forgotten key may run anywhere."""
    node = Crafted(tmp_path, 2, policy=KeyPolicy(window_ms=1000))
    key, other, timed = b"k" * 8 + bytes(8), b"o" * 8 + bytes(8), b"t" * 8 + time_mark(5)
    node.answered(0, {key: b"1"}, clock=100)
    node.answered(1, {timed: b""}, clock=100)
    node.answered(1, {other: b"2"}, clock=9000)  # forgets the timed one
    floor = Figures.of(node.states[1].connection).floor
    assert floor > 0
    made(node, 1, groups=node.finish(clocks=(300, 9000)))
    state = PartitionState.open(state_path(node.directory, 0), partition=0)
    rows = {row.keys: row.due - state.clock for row in stored_keys(state.connection)}
    assert rows == {key: 800, other: 1000}
    assert Figures.of(state.connection).floor == floor
    assert KeyTable(state, node.policy).digest
    state.close()


def test_calls_on_all_partitions_keep_what_is_left_of_their_time(tmp_path: Path) -> None:
    """Their own activity clock goes on at the highest that any partition has, and their dues with it."""
    node = Crafted(tmp_path, 2, policy=KeyPolicy(window_ms=1000))
    key = b"k" * 8 + bytes(8)
    for partition in range(2):
        node.answered(partition, {key: b"1"}, shared=True)
    node.answered(0, {}, shared=True, clock=100)
    node.answered(1, {}, shared=True, clock=400)
    made(node, 1)
    state = PartitionState.open(state_path(node.directory, 0), partition=0)
    (row,) = stored_keys(state.connection)
    assert (row.due - Figures.of(state.connection).shared_clock, -1 - row.clock, row.due) == (900, 300, 1300)
    state.close()


def test_a_full_table_is_refused(tmp_path: Path) -> None:
    """Nothing is dropped to make room; the message says how many partitions have it."""
    node = Crafted(tmp_path, 2, policy=KeyPolicy(keys_max=3))
    for partition in range(2):
        node.answered(partition, {bytes([partition + 1, n]) * 8: b"" for n in range(2)})
    assert "partition 0 would know 4 idempotency keys" in refusal(node, 1)


def test_a_call_on_all_partitions_keeps_its_list_of_results(tmp_path: Path) -> None:
    """The stored pieces put together are the old answer in any shape, the first partition's failure too."""
    node = Crafted(tmp_path, 3)
    key = b"k" * 16
    for partition in range(3):
        node.answered(partition, {key: b'"%d"' % partition}, shared=True)
    groups = node.finish()
    for partitions in (2, 5, 1, 3):
        reshape(FILES, node.directory, groups, partitions=partitions)
        pieces = [known(node.directory, p, shared=True)[key] for p in range(partitions)]
        got: list[Reply] = []
        gather = CombinedReplies(partitions, got.append).slots()
        for done, piece in zip(gather, pieces, strict=True):
            assert piece is not None
            done(CallOutcome(0, TXN, piece))
        assert [reply.body for reply in got if isinstance(reply, CallOutcome)] == [b'["0","1","2"]']


def test_partitions_that_know_other_calls_on_all_of_them_are_refused(tmp_path: Path) -> None:
    """A call that reached some partitions only has no answer."""
    node = Crafted(tmp_path, 2)
    node.answered(0, {b"k" * 16: b"1"}, shared=True)
    assert "do not agree on the multi-partition calls they know" in refusal(node, 3)
