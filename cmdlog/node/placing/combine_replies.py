"""Several partitions' replies to one multi-partition call, put together."""

from __future__ import annotations

import threading
from collections.abc import Callable

import orjson

from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Reply


class CombinedReplies:
    """Calls `done` once, when every partition has replied.

    All partitions OK: the body is a JSON list of results in partition order, the TxnId the highest one (for a write they are all
    the same). Else the first reply in partition order that is not OK; a refusal comes before an outcome, since it is unknown.
    Of a `read` a failure comes first: a part that ends its site takes the parts of the site's other partitions with it, and these
    are only refused. With `each`, where partitions decide for themselves, its message also says on which the call failed.
    """

    def __init__(self, count: int, done: Done, *, each: bool = False, read: bool = False) -> None:
        self._each, self._read = each, read
        self._replies: list[Reply | None] = [None] * count
        self._missing = count
        self._done = done
        self._lock = threading.Lock()

    def slots(self) -> list[Done]:
        """One `done` per partition, in order."""
        return [self._slot(number) for number in range(len(self._replies))]

    def _slot(self, number: int) -> Callable[[Reply], None]:
        def take_reply(reply: Reply) -> None:
            with self._lock:
                self._replies[number] = reply
                self._missing -= 1
                complete = not self._missing
            if complete:
                replies = [reply for reply in self._replies if reply is not None]
                self._done((_find_failed(replies) if self._read else None) or _combine(replies, each=self._each))

        return take_reply


def _find_failed(replies: list[Reply]) -> CallOutcome | None:
    return next((reply for reply in replies if isinstance(reply, CallOutcome) and reply.status), None)


def _combine(replies: list[Reply], *, each: bool) -> Reply:
    outcomes: list[CallOutcome] = []
    for reply in replies:
        if isinstance(reply, CallRefused):
            return reply
        outcomes.append(reply)
    for outcome in outcomes:
        if outcome.status:
            return _with_partitions(outcome, outcomes) if each else outcome
    # The stored outcome of a call that ran on another number of partitions lies whole on the first one (replay.repartition.keys).
    body = b"[" + b",".join(outcome.body for outcome in outcomes if outcome.body) + b"]"
    as_of = {partition: txn_id for outcome in outcomes for partition, txn_id in (outcome.as_of or {}).items()}
    return CallOutcome(0, max(outcome.txn_id for outcome in outcomes), body, as_of=as_of or None)


def _with_partitions(first: CallOutcome, outcomes: list[CallOutcome]) -> CallOutcome:
    failed = [partition for partition, outcome in enumerate(outcomes) if outcome.status]
    if len(failed) == len(outcomes):
        return first
    value = orjson.loads(first.body)
    where = (
        f"on partition{'s' * (len(failed) > 1)} {', '.join(map(str, failed))} of {len(outcomes)}; the others kept their changes"
    )
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        value["message"] = f"{value['message']} ({where})".strip()
    return CallOutcome(first.status, first.txn_id, orjson.dumps(value))
