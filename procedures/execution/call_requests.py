"""What the calls of a batch are compared by when their names come back, for one version of an application.

One rule: it is what callers sent. Where that was not the logged parameters, the batch has its hash (`Invocations.sent`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from procedures.declaration.procedure import Procedure
from procedures.execution.invocations import Invocations
from procedures.idempotency.request_history import Stated, renamed_hashes
from procedures.wire.sent_request import SentSignature, sent_hash


class CallRequests:
    """Hashes of requests by the numbers of their procedures."""

    def __init__(self, procedures: Sequence[Procedure], stated: Mapping[str, Stated]) -> None:
        """`stated`: former signatures, by procedure."""
        self._procedures, self._stated = procedures, stated
        self._sent = [SentSignature.of(procedure.name, procedure.parameter_names) for procedure in procedures]
        self._seeds, self._picks = [one.seed for one in self._sent], [one.pick for one in self._sent]

    def hash_of(self, batch: Invocations, at: int) -> int:
        """The hash of the call at a position."""
        return (batch.sent[at] if batch.sent else 0) or self._sent[batch.procedures[at]].hash_of(batch.params[at])

    def hashes(self, batch: Invocations) -> list[int]:
        """Those of all its calls."""
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
