"""One attempt at a batch: what its calls have brought so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from procedures.execution.invocations import Invocations
from procedures.idempotency.key_table import Kind
from procedures.idempotency.known_calls import all_numbered
from procedures.idempotency.known_outcome import KEY_BYTES, NO_KEY, Fresh
from procedures.idempotency.session_outcome import NumberedCalls
from procedures.wire.request_hash import request_hash


class NeedsSavepoints(Exception):
    """A call raised after it began to change rows."""


_NOTHING: Final = Fresh()


@dataclass(slots=True)
class BatchAttempt:
    """What one attempt at a batch has brought so far."""

    statuses: bytearray
    txn_ids: Sequence[int]
    bodies: list[bytes] = field(default_factory=list)
    fresh: Fresh = _NOTHING  # outcomes to keep under the calls' names
    straight: NumberedCalls | None = None  # the same, of a batch of session calls that ran straight through
    kind: Kind = "single"

    @property
    def kept(self) -> Fresh | NumberedCalls:
        """The outcomes to keep under the calls' names."""
        return self.fresh if self.straight is None else self.straight

    def keep_outcome(self, name: bytes, at: int, request: int, parameters: tuple[int, list[Any]]) -> None:
        """Collects the outcome of the call at a position. `parameters`: seed of its request hash, and what that is made of."""
        if self.fresh is _NOTHING:
            self.fresh = Fresh()
        self.fresh.add(name, request, self.statuses[at], self.txn_ids[at], self.bodies[at])
        if len(name) != KEY_BYTES:
            self.fresh.parameters[name] = parameters

    def keep_outcomes(self, batch: Invocations, keys: Sequence[bytes], seeds: Sequence[int], result_bytes_max: int) -> None:
        """Collects the outcomes of a straight run; a call whose answer is too long to keep must be rolled back.

        Raises: NeedsSavepoints.
        """
        if all_numbered(keys):
            of = [seeds[number] for number in batch.procedures]
            self.straight = NumberedCalls(keys, of, batch.params, self)
        else:
            self._keep_hashed(batch, keys, seeds)
        if self.kept.longest() > result_bytes_max:
            raise NeedsSavepoints

    def _keep_hashed(self, batch: Invocations, keys: Sequence[bytes], seeds: Sequence[int]) -> None:
        requests = [request_hash(seeds[number], params) for number, params in zip(batch.procedures, batch.params, strict=True)]
        if set(map(len, keys)) == {KEY_BYTES} and NO_KEY not in keys:
            self.fresh = Fresh(keys, requests, self.statuses, batch.txn_ids, self.bodies)
            return
        for at, key in enumerate(keys):
            if key != NO_KEY:
                self.keep_outcome(key, at, requests[at], (seeds[batch.procedures[at]], batch.params[at]))
