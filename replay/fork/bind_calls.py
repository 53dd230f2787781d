"""Binds calls of the log to another version of the code: which procedure each of them calls, and with which parameters.

One rule: a call fits if a client could make it today. Its procedure is found by name, its parameters are given by name and pass
the checks of today's signature (a new parameter takes its default), and it runs where it ran: on the same partition, or on all.
A call that does not fit is reported, never adjusted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cmdlog.wal.format.batch import Batch
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition
from procedures import Database
from procedures.code.bundle import bundle_of
from procedures.declaration.hash_slots import slot_of
from procedures.declaration.procedure import Access, Procedure
from procedures.errors import InvalidParameters
from procedures.idempotency.request_history import VersionFacts, next_requests, requests_of
from procedures.wire.sent_request import SentSignature
from replay.engine import CatalogMissing


class Unfit(Exception):
    """Why a call cannot run with this code."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A procedure of a logged catalog version, and its counterpart today."""

    name: str
    parameters: tuple[str, ...]  # as they were
    number: int  # in today's list, -1 = it is not there
    procedure: Procedure | None
    same: bool  # the code is the very same, so nothing needs a check

    def request(self, params: list[Any]) -> int:
        """The hash of a request that was logged with these parameters as it was sent."""
        return SentSignature.of(self.name, self.parameters).hash_of(params)

    @property
    def was(self) -> str:
        """Its signature in the log."""
        return f"{self.name}({', '.join(self.parameters)})"

    @property
    def now(self) -> str:
        """Its signature today."""
        if self.procedure is None:
            return "no such procedure"
        texts = [p.name if p.required else f"{p.name}={orjson.dumps(p.default).decode()}" for p in self.procedure.parameters]
        return f"{self.name}({', '.join(texts)})"


class CallBinding:
    """Binds the procedures of all catalog versions of a log to one version of the code."""

    def __init__(
        self, db: Database, bundle_hash: str, catalogs: Mapping[int, Mapping[str, Any]], slots: Sequence[Sequence[int]]
    ) -> None:
        """
        Args:
            catalogs: version -> value of its record.
            slots: [lo, hi, partition] with slots [lo, hi), ascending; empty: not known, and not checked.
        """
        self._db, self._hash, self._catalogs = db, bundle_hash, catalogs
        self._numbers = {procedure.name: number for number, procedure in enumerate(db.procedure_list)}
        self._starts, self._owners = [int(part[0]) for part in slots], [int(part[2]) for part in slots]
        self._known: dict[int, list[Fit]] = {}

    @property
    def partitions(self) -> int | None:
        """How many there are; None: not known."""
        return max(self._owners) + 1 if self._owners else None

    @property
    def facts(self) -> VersionFacts:
        """What this code's catalog version will state: keys of calls before the fork know their requests by it."""
        newest = self._catalogs[max(self._catalogs)] if self._catalogs else {}
        same = newest.get("hash") == self._hash
        requests = requests_of(newest) if same else next_requests(self._db.procedure_list, newest)
        return VersionFacts(self.partitions, requests)

    def procedures(self, version: int) -> list[Fit]:
        """The procedures of that version, by their numbers in batches. Raises: CatalogMissing, BundleForged."""
        if version not in self._known:
            if version not in self._catalogs:
                raise CatalogMissing(f"catalog version {version} is not in any catalog record of this log")
            bundle = bundle_of(version, self._catalogs[version])
            self._known[version] = [self._fit(stated, same=bundle.hash == self._hash) for stated in bundle.procedures]
        return self._known[version]

    def _fit(self, stated: Mapping[str, Any], *, same: bool) -> Fit:
        number = self._numbers.get(stated["name"], -1)
        procedure = self._db.procedure_list[number] if number >= 0 else None
        return Fit(stated["name"], tuple(stated["parameters"]), number, procedure, same)

    def params(self, fit: Fit, wire: list[Any], *, txn_id: int, partition: int) -> list[Any]:
        """The call's parameters in the order and wire form of today's signature. Raises: Unfit."""
        procedure = fit.procedure
        if fit.same:
            return wire
        if procedure is None:
            raise Unfit("the procedure is missing")
        if procedure.read_only:
            raise Unfit("the procedure is read-only now, so its calls are not logged")
        everywhere = txn_partition(txn_id) == MULTI_PARTITION
        if everywhere != (procedure.access in (Access.EVERYWHERE, Access.EACH)):
            raise Unfit(f"the call ran on {'all partitions' if everywhere else 'one partition'}, and would not today")
        try:
            bound = procedure.bind(dict(zip(fit.parameters, wire, strict=True)))
        except InvalidParameters as error:
            raise Unfit(str(error)) from error
        if not everywhere and (owner := self._owner(procedure, bound, partition)) != partition:
            raise Unfit(f"the call ran on partition {partition}, and would run on {owner} today")
        return bound

    def sent(self, batch: Batch, params: Sequence[list[Any]], ran: Sequence[int]) -> Sequence[int]:
        """The requests of these calls, which keys know again. Raises: CatalogMissing."""
        fits, stated = self.procedures(batch.catalog), batch.sent or [0] * batch.count
        if not batch.sent and all(fit.same for fit in fits):
            return ()
        return [stated[at] or fits[batch.procedures[at]].request(params[at]) for at in ran]

    def _owner(self, procedure: Procedure, bound: list[Any], partition: int) -> int:
        if not self._starts:
            return partition
        return self._owners[bisect_right(self._starts, slot_of(procedure.partition_value(bound))) - 1]
