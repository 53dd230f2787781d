"""What the calls of a batch have brought, and what of it is kept under their keys."""

from __future__ import annotations

import pytest

from procedures import Database, Transaction
from procedures.execution.batch_attempt import BatchAttempt, CallRequests, NeedsSavepoints
from procedures.execution.invocations import Invocations
from procedures.idempotency.known_outcome import NO_KEY
from procedures.wire.sent_request import given_hash, sent_hash

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


def place(tx: Transaction, name: str, order: str | None = None, rate: float = 1.0, size: str = "s") -> None:
    """Takes some of everything."""


sent_db = Database("sent")
sent_db.procedure(partition_by="name")(place)


def test_hashes_of_a_batch_are_those_of_its_calls() -> None:
    """By columns or one by one, and with or without a column in the log."""
    requests = CallRequests(sent_db.procedure_list, {})
    params = [["n", None, 2.5, "s"], ["m", None, 2.0, "l"]]
    for sent in ((), [7, 0]):
        batch = Invocations(1, 1, 0, 1, [1, 2], [0, 0], params, [bytes(16)] * 2, sent=sent)
        assert requests.hashes(batch) == [requests.hash_of(batch, at) for at in range(2)]
        seeds, values = requests.columns(batch)
        if not sent:
            assert list(map(sent_hash, seeds, values)) == requests.hashes(batch)


def test_request_under_a_former_name_is_known() -> None:
    """What was stored when a parameter had another name."""
    requests, params = CallRequests(sent_db.procedure_list, {}), ["n", None, 2.5, "s"]
    batch = Invocations(1, 1, 0, 1, [1], [0], [params], [bytes(16)])
    assert list(requests.former(batch, 0)) == []
    former = {"parameters": ["title", "order", "rate", "size"], "defaults": {}}
    was = given_hash("place", {"title": "n", "order": None, "rate": 2.5, "size": "s"})
    assert set(CallRequests(sent_db.procedure_list, {"place": {"former": [former]}}).former(batch, 0)) == {was}
