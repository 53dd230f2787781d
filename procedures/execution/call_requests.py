"""What the calls of a batch are compared by when their names come back, for one version of an application.

One rule: the batch says how. What callers sent is hashed where it states that (`Invocations.sent`); else, as in early logs, the
parameters by position, with those of former signatures (`procedures.request_history`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from procedures.declaration.procedure import Procedure
from procedures.execution.invocations import Invocations
from procedures.request_history import Stated, former_hashes, renamed_hashes, seed_of
from procedures.wire.request_hash import request_hash
from procedures.wire.sent_request import SentSignature, sent_hash


class CallRequests:
    """Hashes of requests by the numbers of their procedures."""

    def __init__(self, procedures: Sequence[Procedure], stated: Mapping[str, Stated]) -> None:
        """`stated`: former signatures, by procedure."""
        self._procedures, self._stated = procedures, stated
        self._seeds = [seed_of(procedure.name, stated) for procedure in procedures]
        self._sent = [SentSignature.of(procedure.name, procedure.parameter_names) for procedure in procedures]
        self._sent_seeds, self._picks = [one.seed for one in self._sent], [one.pick for one in self._sent]

    def hash_of(self, batch: Invocations, at: int) -> int:
        """The hash of the call at a position."""
        number, params = batch.procedures[at], batch.params[at]
        if batch.sent is None:
            return request_hash(self._seeds[number], params)
        return (batch.sent[at] if batch.sent else 0) or self._sent[number].hash_of(params)

    def hashes(self, batch: Invocations) -> list[int]:
        """Those of all its calls."""
        if batch.sent is None or batch.sent:
            return [self.hash_of(batch, at) for at in range(len(batch.params))]
        seeds, values = self.columns(batch)
        return list(map(sent_hash, seeds, values))

    def former(self, batch: Invocations, at: int) -> Iterator[int]:
        """What else the request may have been stored as: under a former signature, or before requests were stated."""
        number, params = batch.procedures[at], batch.params[at]
        procedure = self._procedures[number]
        if batch.sent is not None:
            yield request_hash(self._seeds[number], params)
            yield from renamed_hashes(procedure, self._stated, params)
        yield from former_hashes(procedure, self._stated, params)

    def made_from(self, batch: Invocations, at: int) -> tuple[int, Sequence[Any]]:
        """What makes a request's hash in the form of the batch: its seed and its values; of `HASHED` the hash itself."""
        number, params = batch.procedures[at], batch.params[at]
        if batch.sent is None:
            return self._seeds[number], params
        if batch.sent:
            return self.hash_of(batch, at), ()
        return self._sent[number].seed, self._sent[number].values(params)

    def columns(self, batch: Invocations) -> tuple[Sequence[int], Sequence[Sequence[Any]]]:
        """The same of all its calls."""
        numbers = batch.procedures
        if batch.sent is None:
            return [self._seeds[number] for number in numbers], batch.params
        if batch.sent:
            return self.hashes(batch), ()
        picks = self._picks
        values = [
            params if (pick := picks[at]) is None else pick(params) for at, params in zip(numbers, batch.params, strict=True)
        ]
        return [self._sent_seeds[number] for number in numbers], values
