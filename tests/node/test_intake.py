"""Which version of the code calls run that are placed before, at and after a switch."""

from __future__ import annotations

import pytest

from cmdlog.node.outcome import CodeChanged, LogFullRefusal, MigratingRefusal, NotReady, Overloaded
from cmdlog.node.sequencing.intake import Admission, Closed
from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.wal.format.batch import NO_KEY, decode_batch
from cmdlog.wal.format.record import RecordKind, decode_record
from tests.node.pipeline import Pipeline


def place(line: Pipeline, number: int, catalog: int) -> None:
    """One call of partition 0, bound to this version."""
    line.sequencer.intake.add(0, number, b"[]", NO_KEY, lambda _reply: None, lax=False, catalog=catalog)


def taken(line: Pipeline) -> list[tuple[int, list[int]]]:
    """Version and procedures of each batch that the log is given next."""
    records = map(decode_record, line.sequencer.log_feed.take_records(1 << 20))
    batches = [decode_batch(record) for record in records if record.kind is RecordKind.BATCH]
    return [(batch.catalog, list(batch.procedures)) for batch in batches]


def test_what_waits_keeps_its_version() -> None:
    """Open batches and calls on all partitions, also over two switches; a call of replaced code is not placed."""
    line = Pipeline(limits=Limits(site_batches_max=9))
    code = line.sequencer.intake
    first, bound = code.code_version, list[int]()
    place(line, 1, first)
    line.sequencer.intake.add_everywhere(2, b"[]", NO_KEY, [lambda _reply: None] * 2, lax=False, catalog=first)
    code.switch_code(first + 1, lambda: bound.append(first + 1))
    place(line, 3, first + 1)
    place(line, 3, 0)
    with pytest.raises(CodeChanged):
        place(line, 1, first)
    code.switch_code(first + 2, lambda: bound.append(first + 2))
    place(line, 4, first + 2)
    found = [part for _ in range(6) for part in taken(line)]
    assert found == [(first, [1]), (first, [2]), (first, [2]), (first + 1, [3, 3]), (first + 2, [4])]
    assert bound == [first + 1, first + 2]
    assert (code.code_version, line.sequencer.admission.inflight_calls) == (first + 2, 6)


def test_calls_are_held_and_accepted_again() -> None:
    """What refuses them for another reason is not undone."""
    sequencer = Pipeline().sequencer
    sequencer.intake.hold_calls()
    sequencer.intake.hold_calls()
    with pytest.raises(MigratingRefusal):
        sequencer.intake.add(0, 1, b"[]", NO_KEY, lambda _reply: None, lax=False)
    sequencer.intake.accept_calls()
    sequencer.intake.add(0, 1, b"[]", NO_KEY, lambda _reply: None, lax=False)
    sequencer.intake.refuse(Closed.NODE, NotReady("it stops"))
    with pytest.raises(NotReady):
        sequencer.intake.hold_calls()
    sequencer.intake.accept_calls()
    with pytest.raises(NotReady):
        sequencer.intake.add(0, 1, b"[]", NO_KEY, lambda _reply: None, lax=False)


def test_a_reserved_id_is_between_those_of_calls() -> None:
    """And no other gets it."""
    code = Pipeline().sequencer.intake
    assert code.reserve_txn() < code.reserve_txn()


# -- Tests of the gate before the sequencer

LIMITS = Limits(
    batch_calls_max=10, batch_bytes_max=100, site_batches_max=2, inflight_calls_max=3, inflight_bytes_max=100
)  # fmt: skip


def _admission(room_bytes: int = 1 << 30) -> Admission:
    return Admission(LIMITS, room_bytes=lambda: room_bytes, why_full=lambda: "it is full")


@pytest.mark.parametrize(
    ("calls", "size_bytes", "room_bytes", "refusal"),
    [(4, 1, 1 << 30, Overloaded), (1, 101, 1 << 30, Overloaded), (1, 50, 40, LogFullRefusal)],
)
def test_a_refused_call_counts_for_nothing(calls: int, size_bytes: int, room_bytes: int, refusal: type[Exception]) -> None:
    """Limits of calls and bytes, and the log's room, refuse before anything is counted."""
    admission = _admission(room_bytes)
    with pytest.raises(refusal):
        admission.admit((0,), calls, size_bytes, overhead_bytes=0)
    assert (admission.inflight_calls, admission.inflight_bytes, admission.pending_bytes) == (0, 0, 0)


def test_each_reason_ends_by_itself() -> None:
    """What opens the gate for one reason leaves the others; the first is told, in an error of each caller's own."""
    admission = _admission()
    reasons = {reason: NotReady(reason.name) for reason in reversed(Closed)}
    for reason, refusal in reasons.items():
        admission.close(reason, refusal)
    admission.close_partition(1, NotReady("its site"))
    for reason in Closed:
        assert admission.refusal is (None if reason is Closed.MAJORITY else reasons[reason])
        with pytest.raises(NotReady, match=reason.name) as raised:
            admission.admit((0,), 1, 1, overhead_bytes=0)
        assert raised.value is not reasons[reason]
        with pytest.raises(NotReady, match="its site"):
            admission.admit((0, 1), 1, 1, overhead_bytes=0)
        admission.open(reason)
    admission.admit((0,), 1, 1, overhead_bytes=0)
    admission.open_partition(1)
    admission.admit((0, 1), 1, 1, overhead_bytes=0)
