"""Client sessions in another number of partitions: copied, merged, moved in time, and no number runs twice."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import apsw
import pytest

from cmdlog.node.outcome import CallOutcome, CombinedReplies, Reply
from procedures.idempotency.key_table import Figures
from procedures.idempotency.known_calls import KnownCalls
from procedures.idempotency.known_outcome import Fresh, KeyPolicy, Status, key_fingerprint
from procedures.idempotency.session_calls import ENDED
from procedures.idempotency.session_row import SINGLE_FIGURES, Stage, forgotten_of, stored_rows
from procedures.idempotency.session_table import SHRINK_AFTER
from procedures.storage.state import PartitionState
from procedures.wire.sent_request import sent_hash
from replay.diff.diff import DiffReport, NamesDiff, compare_sessions
from replay.diff.state_reader import States
from replay.repartition.repartition import reshape
from replay.state.trust import state_path
from tests.procedures.sites import uuid7
from tests.replay.shapes import FILES, SEED, TXN, Crafted, made, refusal, sessions_of

NOW_MS = TXN >> 21
IDLE = 1000
POLICY = KeyPolicy(session_idle_ms=IDLE)


def session(tail: int, born_ms: int = NOW_MS) -> bytes:
    """A session of one caller."""
    return key_fingerprint("me", uuid7(born_ms, tail))


def name(of: bytes, number: int) -> bytes:
    """Of a call of the session."""
    return of + number.to_bytes(8, "little")


ONE, TWO, OLD = session(1), session(2), session(3, NOW_MS - 5 * IDLE)


def judged(directory: str, partition: int, call: bytes, policy: KeyPolicy = POLICY) -> tuple[int, bytes] | None:
    """What a retry of the call is answered by a partition; None: it runs."""
    state = PartitionState.open(state_path(directory, partition), partition=partition)
    table = KnownCalls(state, policy)
    table.begin_batch({call[:16]: 0}, txn_ms=NOW_MS, kind="single")
    found = None if table.runs_plainly([call], kind="single") else table.judge(call, sent_hash(SEED, []), Fresh(), kind="single")
    state.close()
    return None if found is None else (found.status, b"" if found.status else found.body)


def test_numbers_are_copied_to_every_partition_that_may_be_asked(tmp_path: Path) -> None:
    """Of 2 partitions made 3: the middle one knows the numbers of both, with the higher floor."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    node.called(0, {name(ONE, 1): b"1", name(ONE, 4): b"4"}, {ONE: 0})
    node.called(0, {name(ONE, 6): b"6", name(TWO, 1): b"21"}, {ONE: 0, TWO: 0})
    node.called(1, {name(ONE, 5): b"5"}, {ONE: 3})
    made(node, 3)
    of_two = {TWO: (0, {1: b"21"})}
    assert [sessions_of(node.directory, p) for p in range(3)] == [
        {ONE: (0, {1: b"1", 4: b"4", 6: b"6"}), **of_two},
        {ONE: (3, {4: b"4", 5: b"5", 6: b"6"}), **of_two},
        {ONE: (3, {5: b"5"})},
    ]
    assert judged(node.directory, 1, name(ONE, 4)) == (0, b"4")
    assert judged(node.directory, 1, name(ONE, 5)) == (0, b"5")
    assert judged(node.directory, 1, name(ONE, 3)) == (Status.SESSION_EXPIRED, b"")
    assert judged(node.directory, 1, name(ONE, 7)) is None


def test_copies_of_a_number_become_one_again(tmp_path: Path) -> None:
    """From 1 to 4 partitions and back again."""
    node = Crafted(tmp_path, 1, policy=POLICY)
    node.called(0, {name(ONE, 1): b"1", name(ONE, 2): b"2"}, {ONE: 0})
    groups = node.finish()
    for partitions in (4, 3, 1):
        reshape(FILES, node.directory, groups, partitions=partitions)
        assert sessions_of(node.directory, partitions - 1) == {ONE: (0, {1: b"1", 2: b"2"})}
    state = PartitionState.open(state_path(node.directory, 0), partition=0)
    assert [number for row in stored_rows(state.connection) for number in row.numbers] == [1, 2]
    state.close()


def test_a_session_that_one_parent_may_have_forgotten_is_over_where_both_meet(tmp_path: Path) -> None:
    """Its number 1 ran on partition 0, which has forgotten it: known by partition 1 alone, it would run a second time."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    node.called(0, {name(OLD, 1): b"1"}, {OLD: 0})
    for number in range(2, 5):
        node.called(1, {name(OLD, number): b"x"}, {OLD: 0}, clock=number * IDLE // 2)
    node.called(1, {name(ONE, 1): b"1"}, {ONE: 0}, clock=2 * IDLE)
    node.called(0, {name(ONE, 2): b"2"}, {ONE: 0}, clock=2 * IDLE)
    assert forgotten_of(node.states[0].connection, SINGLE_FIGURES).born > NOW_MS - 5 * IDLE
    groups = node.finish(clocks=(2 * IDLE, 2 * IDLE))
    made(node, 3, groups=groups)
    assert judged(node.directory, 1, name(OLD, 1)) == (Status.SESSION_EXPIRED, b"")
    assert sessions_of(node.directory, 1) == {ONE: (0, {1: b"1", 2: b"2"}), OLD: (ENDED, {})}
    assert sessions_of(node.directory, 2)[OLD][0] == 0  # partition 1 alone comes here, and has forgotten nothing
    assert judged(node.directory, 2, name(OLD, 3)) == (0, b"x")
    assert judged(node.directory, 0, name(OLD, 3)) == (Status.SESSION_EXPIRED, b"")
    assert judged(node.directory, 2, name(session(4, NOW_MS - 5 * IDLE), 1)) == (Status.SESSION_EXPIRED, b"")


def test_rows_keep_what_is_left_of_their_time_in_the_order_of_the_clock(tmp_path: Path) -> None:
    """Activity clocks of the old partitions differ; a session is idle when it would have been without the move."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    node.called(0, {name(ONE, 1): b"1"}, {ONE: 0}, clock=100)
    node.called(0, {name(OLD, 1): b"1"}, {OLD: 0}, clock=250)
    node.called(1, {name(TWO, 1): b"1"}, {TWO: 0}, clock=8900)
    made(node, 1, groups=node.finish(clocks=(300, 9000)))
    state = PartitionState.open(state_path(node.directory, 0), partition=0)
    ages = [(row.sessions, state.clock - row.clock) for row in stored_rows(state.connection)]
    assert ages == [((ONE,), 200), ((TWO,), 100), ((OLD,), 50)]
    state.close()


def test_an_old_row_makes_no_session_known(tmp_path: Path) -> None:
    """A row older than a session may be idle holds an outcome; what its other sessions are is said by later rows, if at all."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    node.called(0, {name(ONE, 1): b"1", name(OLD, 1): b"1"}, {ONE: 0, OLD: 0})
    for step in range(1, 6):
        node.called(0, {name(ONE, 1 + step): b"x"}, {ONE: 0}, clock=step * IDLE * 2 // 3)
    assert next(stored_rows(node.states[0].connection)).stage == Stage.OLD
    node.called(1, {name(ONE, 50): b"50"}, {ONE: 2}, clock=5)
    made(node, 1, groups=node.finish(clocks=(4000, 6)))
    assert sessions_of(node.directory, 0) == {ONE: (2, dict.fromkeys(range(3, 7), b"x") | {50: b"50"})}
    assert judged(node.directory, 0, name(OLD, 1)) == (Status.SESSION_EXPIRED, b"")


def test_a_full_table_is_refused(tmp_path: Path) -> None:
    """No session is dropped to make room; one that both parents know counts once."""
    node = Crafted(tmp_path, 2, policy=KeyPolicy(sessions_max=3))
    for partition in range(2):
        node.called(
            partition, {name(session(tail), 9): b"" for tail in (0, partition + 1)}, {session(0): 0, session(partition + 1): 0}
        )
    made(node, 1)
    assert len(sessions_of(node.directory, 0)) == 3

    node = Crafted(tmp_path / "more", 2, policy=KeyPolicy(sessions_max=3))
    for partition in range(2):
        several = [session(2 * partition + at) for at in range(2)]
        node.called(partition, {name(of, 1): b"" for of in several}, dict.fromkeys(several, 0))
    said = refusal(node, 1)
    assert "partition 0 would know 4 client sessions of the old partitions 0, 1, and sessions_max is 3" in said


@pytest.mark.parametrize("floor", [0, 1])
def test_a_call_on_all_partitions_keeps_its_list_of_results(tmp_path: Path, floor: int) -> None:
    """The stored pieces put together are the old answer in any shape; what each partition has shrunk makes no difference."""
    node = Crafted(tmp_path, 3, policy=POLICY)
    for partition in range(3):
        node.called(partition, {name(ONE, 1): b'"%d"' % partition}, {ONE: 0}, shared=True)
        node.called(partition, {name(ONE, 2): b'"other %d"' % partition}, {ONE: 0}, shared=True)
        if partition == 1:  # its index is far ahead, so its rows are shrunk by the next call
            node.skip_entries(partition, SHRINK_AFTER)
        node.called(partition, {name(ONE, 3): b'"third"'}, {ONE: floor}, shared=True)
    stages = [[row.stage for row in stored_rows(state.connection)] for state in node.states]
    assert stages[0] == stages[2] != stages[1]
    groups = node.finish()
    for partitions in (2, 5, 1, 3):
        reshape(FILES, node.directory, groups, partitions=partitions)
        assert sessions_of(node.directory, 0) == {}
        pieces = [sessions_of(node.directory, p, shared=True)[ONE][1][2] for p in range(partitions)]
        got: list[Reply] = []
        for done, piece in zip(CombinedReplies(partitions, got.append).slots(), pieces, strict=True):
            done(CallOutcome(0, TXN, piece))
        assert [reply.body for reply in got if isinstance(reply, CallOutcome)] == [b'["other 0","other 1","other 2"]']
    assert (1 in sessions_of(node.directory, 0, shared=True)[ONE][1]) is (floor == 0)


def test_clock_of_calls_on_all_partitions_is_moved(tmp_path: Path) -> None:
    """Their own activity clock goes on at the highest that any partition has, and their rows with it."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    for partition in range(2):
        node.called(partition, {name(ONE, 1): b"1"}, {ONE: 0}, shared=True)
    node.answered(0, {}, shared=True, clock=100)
    node.answered(1, {}, shared=True, clock=400)
    made(node, 1)
    state = PartitionState.open(state_path(node.directory, 0), partition=0)
    (row,) = stored_rows(state.connection)
    assert (-1 - row.clock, Figures.of(state.connection).shared_clock) == (300, 400)
    state.close()


def test_partitions_that_know_other_calls_on_all_of_them_are_refused(tmp_path: Path) -> None:
    """A call that reached some partitions only has no answer."""
    node = Crafted(tmp_path, 2, policy=POLICY)
    node.called(0, {name(ONE, 1): b"1"}, {ONE: 0}, shared=True)
    assert "do not agree on the multi-partition calls they know" in refusal(node, 3)


def test_diff_compares_the_numbers_that_are_known(tmp_path: Path) -> None:
    """In any shape the sides are equal; what lies below a floor, wherever that is known, is on neither side."""
    sides = []
    for part, partitions, last in (("one", 3, 5), ("two", 3, 5), ("three", 3, 6)):
        node = Crafted(tmp_path / part, 2, policy=POLICY)
        node.called(0, {name(ONE, 1): b"1", name(ONE, 3): b"3"}, {ONE: 0})
        node.called(1, {name(ONE, last): b"x", name(TWO, 9): b"y"}, {ONE: 2, TWO: 0})
        groups = node.finish()
        if part != "one":
            made(node, partitions, groups=groups)
        sides.append((node.directory, range(2 if part == "one" else partitions)))
    with ExitStack() as stack:
        one, two, three = (_states(stack, directory, partitions) for directory, partitions in sides)
        assert compare_sessions(one, two) == NamesDiff(3, 3, 0, 0)
        assert compare_sessions(one, three) == NamesDiff(3, 3, 1, 1)
        assert not DiffReport([], None, compare_sessions(one, three)).equal


def _states(stack: ExitStack, directory: str, partitions: range) -> States:
    open_one = {p: stack.enter_context(closing(apsw.Connection(state_path(directory, p)))) for p in partitions}
    return States(directory, "states", open_one, {})
