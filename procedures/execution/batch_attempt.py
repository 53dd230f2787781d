"""One attempt at a batch: what its calls have brought so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from procedures.execution.call_requests import CallRequests
from procedures.execution.invocations import Invocations
from procedures.idempotency.key_table import Kind
from procedures.idempotency.known_calls import all_numbered
from procedures.idempotency.known_outcome import KEY_BYTES, NO_KEY, Fresh
from procedures.idempotency.packed_outcomes import NumberedCalls


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
    hashed: bool = False  # requests of session calls are kept as hashes, not as what makes them

    @property
    def kept(self) -> Fresh | NumberedCalls:
        """The outcomes to keep under the calls' names."""
        return self.fresh if self.straight is None else self.straight

    def keep_outcome(self, name: bytes, at: int, request: int, made_from: tuple[int, Sequence[Any]]) -> None:
        """Collects the outcome of the call at a position. `made_from`: see `CallRequests`."""
        if self.fresh is _NOTHING:
            self.fresh = Fresh(hashed=self.hashed)
        self.fresh.add(name, request, self.statuses[at], self.txn_ids[at], self.bodies[at])
        if len(name) != KEY_BYTES:
            self.fresh.parameters[name] = made_from

    def keep_outcomes(self, batch: Invocations, keys: Sequence[bytes], requests: CallRequests, result_bytes_max: int) -> None:
        """Collects the outcomes of a straight run; a call whose answer is too long to keep must be rolled back.

        Raises: NeedsSavepoints.
        """
        if all_numbered(keys):
            self.straight = NumberedCalls(keys, *requests.columns(batch), self, hashed=self.hashed)
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
