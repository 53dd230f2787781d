"""Tests of the gate before the sequencer."""

import pytest

from cmdlog.node.outcome import LogFullRefusal, NotReady, Overloaded
from cmdlog.node.sequencing.admission import Admission, Closed
from cmdlog.node.sequencing.partition_pipeline import Limits

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
