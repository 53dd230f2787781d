"""What the calls of a batch have brought, and what of it is kept under their keys."""

from __future__ import annotations

import pytest

from procedures import Database, Transaction
from procedures.execution.batch_attempt import BatchAttempt, NeedsSavepoints
from procedures.execution.call_requests import CallRequests
from procedures.execution.invocations import Invocations
from procedures.idempotency.known_outcome import NO_KEY

db = Database("attempt")


@db.procedure(partition_by="at")
def answer(tx: Transaction, at: int) -> int:
    """What it is given."""
    return at


REQUESTS = CallRequests(db.procedure_list, {})


def attempt() -> tuple[BatchAttempt, Invocations]:
    """Two calls that have ended, the second with a longer answer."""
    batch = Invocations(index=1, term=1, checksum=0, catalog=1, txn_ids=[5, 6], procedures=[0, 0], params=[[1], [2]], keys=None)
    return BatchAttempt(bytearray(2), batch.txn_ids, [b"1", b"22"]), batch


def test_only_calls_with_a_key_are_kept() -> None:
    """A call without a key can be repeated, so nothing is stored for it."""
    run, batch = attempt()
    run.keep_outcomes(batch, [b"k" * 16, NO_KEY], REQUESTS, 100)
    assert run.fresh.longest() == 1
    run.keep_outcomes(batch, [b"k" * 16, b"l" * 16], REQUESTS, 100)
    assert run.fresh.longest() == 2


def test_answer_that_is_too_long_to_keep_needs_savepoints() -> None:
    """Its call is rolled back alone, which a straight run cannot do."""
    run, batch = attempt()
    with pytest.raises(NeedsSavepoints):
        run.keep_outcomes(batch, [b"k" * 16, b"l" * 16], REQUESTS, 1)
