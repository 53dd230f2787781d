"""One attempt at a batch: what its calls have brought so far, and by what they are known when they come again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from procedures.declaration.procedure import Procedure
from procedures.execution.invocations import Invocations
from procedures.idempotency.key_table import Kind
from procedures.idempotency.known_calls import all_numbered
from procedures.idempotency.known_outcome import KEY_BYTES, NO_KEY, NO_OUTCOMES, Fresh
from procedures.idempotency.packed_outcomes import NumberedCalls
from procedures.idempotency.request_history import Stated, renamed_hashes
from procedures.wire.sent_request import SentSignature, sent_hash


class CallRequests:
    """What the calls of a batch are compared by when their names come back, for one version of an application.

    One rule: it is what callers sent. Where that was not the logged parameters, the batch has its hash (`Invocations.sent`).
    """

    def __init__(self, procedures: Sequence[Procedure], stated: Mapping[str, Stated]) -> None:
        """`stated`: former signatures, by procedure."""
        self._procedures, self._stated = procedures, stated
        self._sent = [SentSignature.of(procedure.name, procedure.parameter_names) for procedure in procedures]
        self._seeds, self._picks = [one.seed for one in self._sent], [one.pick for one in self._sent]

    def hash_of(self, batch: Invocations, at: int) -> int:
        """The hash of the call at a position."""
        return (batch.sent[at] if batch.sent else 0) or self._sent[batch.procedures[at]].hash_of(batch.params[at])

    def hashes(self, batch: Invocations) -> list[int]:
        """The hashes of all its calls."""
        if batch.sent:
            return [self.hash_of(batch, at) for at in range(len(batch.params))]
        seeds, values = self.columns(batch)
        return list(map(sent_hash, seeds, values))

    def former(self, batch: Invocations, at: int) -> Iterator[int]:
        """What else the request may have been stored as, under a former signature."""
        return renamed_hashes(self._procedures[batch.procedures[at]], self._stated, batch.params[at])

    def made_from(self, batch: Invocations, at: int) -> tuple[int, Sequence[Any]]:
        """What makes a request's hash: its seed and its values; where callers sent something else, the hash itself."""
        if batch.sent:
            return self.hash_of(batch, at), ()
        sent = self._sent[batch.procedures[at]]
        return sent.seed, sent.values(batch.params[at])

    def columns(self, batch: Invocations) -> tuple[Sequence[int], Sequence[Sequence[Any]]]:
        """The same of all its calls."""
        if batch.sent:
            return self.hashes(batch), ()
        numbers, picks = batch.procedures, self._picks
        values = [
            params if (pick := picks[at]) is None else pick(params) for at, params in zip(numbers, batch.params, strict=True)
        ]
        return [self._seeds[number] for number in numbers], values


class NeedsSavepoints(Exception):
    """A call raised after it began to change rows."""


@dataclass(slots=True)
class BatchAttempt:
    """What one attempt at a batch has brought so far."""

    statuses: bytearray
    txn_ids: Sequence[int]
    bodies: list[bytes] = field(default_factory=list)
    fresh: Fresh = NO_OUTCOMES  # outcomes to keep under the calls' names
    straight: NumberedCalls | None = None  # the same, of a batch of session calls that ran straight through
    kind: Kind = "single"
    hashed: bool = False  # requests of session calls are kept as hashes, not as what makes them

    @property
    def kept(self) -> Fresh | NumberedCalls:
        """The outcomes to keep under the calls' names."""
        return self.fresh if self.straight is None else self.straight

    def keep_outcome(self, name: bytes, at: int, request: int, made_from: tuple[int, Sequence[Any]]) -> None:
        """Collects the outcome of the call at a position. `made_from`: see `CallRequests`."""
        if self.fresh is NO_OUTCOMES:
            self.fresh = Fresh(hashed=self.hashed)
        self.fresh.add(name, request, self.statuses[at], self.txn_ids[at], self.bodies[at])
        if len(name) != KEY_BYTES:
            self.fresh.parameters[name] = made_from

    def keep_outcomes(self, batch: Invocations, keys: Sequence[bytes], requests: CallRequests, result_bytes_max: int) -> None:
        """Collects the outcomes of a straight run; a call whose answer is too long to keep must be rolled back.

        Raises: NeedsSavepoints.
        """
        if all_numbered(keys):
            self.straight = NumberedCalls(
                keys, *requests.columns(batch), hashed=self.hashed, ended=(self.statuses, self.txn_ids, self.bodies)
            )
        else:
            self._keep_hashed(batch, keys, requests)
        if self.kept.longest() > result_bytes_max:
            raise NeedsSavepoints

    def _keep_hashed(self, batch: Invocations, keys: Sequence[bytes], requests: CallRequests) -> None:
        if set(map(len, keys)) == {KEY_BYTES} and NO_KEY not in keys:
            self.fresh = Fresh(keys, requests.hashes(batch), self.statuses, batch.txn_ids, self.bodies)
            return
        for at, key in enumerate(keys):
            if key != NO_KEY:
                self.keep_outcome(key, at, requests.hash_of(batch, at), requests.made_from(batch, at))
