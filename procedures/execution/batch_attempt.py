"""One attempt at a batch: what its calls have brought so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from procedures.execution.idempotency import NO_KEY, Fresh, request_hash
from procedures.execution.idempotency_table import Kind
from procedures.execution.invocations import Invocations


class NeedsSavepoints(Exception):
    """A call raised after it began to change rows."""


@dataclass(slots=True)
class BatchAttempt:
    """What one attempt at a batch has brought so far."""

    statuses: bytearray
    txn_ids: Sequence[int]
    bodies: list[bytes] = field(default_factory=list)
    fresh: Fresh = field(default_factory=Fresh)  # outcomes to keep under their keys
    kind: Kind = "single"

    def keep_outcomes(self, batch: Invocations, keys: Sequence[bytes], seeds: Sequence[int], result_bytes_max: int) -> None:
        """Collects the outcomes of a straight run; a call whose answer is too long to keep must be rolled back.

        Raises: NeedsSavepoints.
        """
        requests = [request_hash(seeds[number], params) for number, params in zip(batch.procedures, batch.params, strict=True)]
        if NO_KEY in keys:
            for at, key in enumerate(keys):
                if key != NO_KEY:
                    self.fresh.add(key, requests[at], self.statuses[at], batch.txn_ids[at], self.bodies[at])
        else:
            self.fresh = Fresh(keys, requests, self.statuses, batch.txn_ids, self.bodies)
        if self.fresh.longest() > result_bytes_max:
            raise NeedsSavepoints
