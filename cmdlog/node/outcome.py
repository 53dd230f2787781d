"""What a waiting caller gets: an outcome of the procedure, or the reason why there is none.

One rule: a `CallOutcome` was decided by the replicated state machine and is the same on every replica and replay; a `CallRefused`
was not: either nothing was logged (`retry is safe`), or the caller cannot know (`UnknownOutcome`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import orjson

from cmdlog import errors
from procedures.execution.failure_trace import FailureTrace


class CallOutcome(NamedTuple):
    status: int  # procedures.execution.executor.Status
    txn_id: int  # of the first execution, when an idempotency key repeats
    body: bytes  # JSON
    trace: FailureTrace | None = None  # of a read that raised; a logged call's is found by its transaction id
    as_of: Mapping[int, int] | None = None  # of a stale read: partition -> TxnId up to which the state that was read holds all


class CallRefused(errors.CmdlogError):
    """No outcome. `code` is the stable problem code of SERVING.md "Errors"; nothing of the call is in the log."""

    code = "not_ready"
    status = 503
    retry_after_s: float | None = 1.0

    def more(self) -> dict[str, Any]:
        """Further members of the problem."""
        return {}

    def again(self) -> CallRefused:
        """The same refusal for another caller: a raised exception carries its traceback and is not raised twice."""
        return type(self)(*self.args)


class NotReady(CallRefused, errors.Unavailable):
    """The node is starting, stopping, or the call's partition is being restored."""


class NoLeader(NotReady):
    """No node of the cluster is known to take calls at present."""

    code = "no_quorum"
    retry_after_s = 0.5


class NoMajority(NoLeader):
    """A node leads, and too few others take entries for a call to be committed."""

    retry_after_s = 1.0


class NotLeading(NotReady):
    """Another node takes the calls: `leader` is its URL for clients, "" while it takes over; `node` its number, 0 if unknown."""

    retry_after_s = 0.05  # a take-over is a few writes

    def __init__(self, message: str, leader: str = "", node: int = 0) -> None:
        super().__init__(message)
        self.leader, self.node = leader, node

    def more(self) -> dict[str, Any]:
        return {"leader": self.leader} if self.leader else {}

    def again(self) -> NotLeading:
        return NotLeading(str(self), self.leader, self.node)


class LogFullRefusal(CallRefused, errors.Unavailable):
    """No room in the log until a snapshot lets a segment go."""

    code = "log_full"


class DiskFullRefusal(CallRefused, errors.Unavailable):
    """The volume of the data directory is full."""

    code = "disk_full"
    retry_after_s = 5.0


class Overloaded(CallRefused, errors.Unavailable):
    """More calls or bytes in flight than `inflight_calls_max` or `inflight_bytes_max`."""


class CallTooLarge(CallRefused, errors.TooLarge):
    """The call's parameters exceed `call_bytes_max`."""

    code = "too_large"
    status = 413
    retry_after_s = None


class CodeChanged(CallRefused, errors.Unavailable):
    """The call was bound to code that a deploy has replaced, and the new code declares it differently."""

    code = "code_changed"
    retry_after_s = 0.0


class MigratingRefusal(CallRefused, errors.Unavailable):
    """The tables change at present, and calls are accepted again when they have."""

    code = "migrating"


class UnknownOutcome(CallRefused, errors.OutcomeUnknown):
    """The call may have been logged and executed; a retry under the same idempotency key shows which."""

    code = "outcome_unknown"
    status = 504
    retry_after_s = None


Durability = Literal["sync", "async"]  # answered once it is durable, or once it is executed, durable a moment later
Reply = CallOutcome | CallRefused
Done = Callable[[Reply], None]  # called once, from any thread, never under a lock


def when_all(count: int, done: Done) -> Done:
    """To be called with so many replies: `done` gets the last of them, or the first that is no outcome, and nothing after it."""
    left, lock = count, threading.Lock()

    def note_reply(reply: Reply) -> None:
        nonlocal left
        with lock:
            before, left = left, left - 1 if isinstance(reply, CallOutcome) else 0
            ends = before > 0 >= left
        if ends:
            done(reply)

    return note_reply


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
