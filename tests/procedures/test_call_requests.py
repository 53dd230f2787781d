"""What the calls of a batch are compared by: hashes of requests, from columns or from parameters."""

from __future__ import annotations

from procedures import Database, Transaction
from procedures.execution.call_requests import CallRequests
from procedures.execution.invocations import Invocations
from procedures.wire.sent_request import given_hash, sent_hash


def place(tx: Transaction, name: str, order: str | None = None, rate: float = 1.0, size: str = "s") -> None:
    """Takes some of everything."""


db = Database("sent")
db.procedure(partition_by="name")(place)


def test_hashes_of_a_batch_are_those_of_its_calls() -> None:
    """By columns or one by one, and with or without a column in the log."""
    requests = CallRequests(db.procedure_list, {})
    params = [["n", None, 2.5, "s"], ["m", None, 2.0, "l"]]
    for sent in ((), [7, 0]):
        batch = Invocations(1, 1, 0, 1, [1, 2], [0, 0], params, [bytes(16)] * 2, sent=sent)
        assert requests.hashes(batch) == [requests.hash_of(batch, at) for at in range(2)]
        seeds, values = requests.columns(batch)
        if not sent:
            assert list(map(sent_hash, seeds, values)) == requests.hashes(batch)


def test_request_under_a_former_name_is_known() -> None:
    """What was stored when a parameter had another name."""
    requests, params = CallRequests(db.procedure_list, {}), ["n", None, 2.5, "s"]
    batch = Invocations(1, 1, 0, 1, [1], [0], [params], [bytes(16)])
    assert list(requests.former(batch, 0)) == []
    former = {"parameters": ["title", "order", "rate", "size"], "defaults": {}}
    was = given_hash("place", {"title": "n", "order": None, "rate": 2.5, "size": "s"})
    assert set(CallRequests(db.procedure_list, {"place": {"former": [former]}}).former(batch, 0)) == {was}
