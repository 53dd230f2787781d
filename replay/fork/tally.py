"""What the calls of a fork did, compared with the live run, and how far a partition has got.

One rule: these are values. They go from a worker process to who started it, and into the state file of a fork that is not yet
finished, so each of them is also JSON (`kept`, `of_kept`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from cmdlog.wal.directory.instance import Identity, Origin
from procedures.idempotency.known_outcome import Status
from replay.results import PartitionResult


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that did not end as it did live."""

    txn_id: int
    partition: int
    index: int  # of the log that was forked
    position: int
    procedure: str
    params: list[Any]
    live_hash: int  # CRC-32C of status and answer: all that the log keeps of an outcome
    status: str
    outcome: Any
    live_status: str = ""  # "": not looked for, or not found
    live_outcome: Any = None
    block: int = 0  # of the log that holds its batch; 0 = not known

    def to_json(self) -> dict[str, Any]:
        return {
            "txn_id": str(self.txn_id), "partition": self.partition, "index": self.index, "position": self.position,
            "procedure": self.procedure, "params": self.params, "live_hash": f"{self.live_hash:08x}",
            "status": self.status, "outcome": self.outcome,
            "live_status": self.live_status or None, "live_outcome": self.live_outcome,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Calls of one procedure that did not run, for one reason."""

    procedure: str
    why: str
    calls: int
    first_txn_id: int

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "first_txn_id": str(self.first_txn_id)}


@dataclass(slots=True)
class RerunTally:
    """What the calls did."""

    compared: int = 0  # calls whose live outcome the log knows
    changed: int = 0  # … and that ended differently
    first: Difference | None = None  # by transaction id
    statuses: Counter[int] = field(default_factory=Counter)  # `Status` -> calls
    left_out: dict[tuple[str, str], LeftOut] = field(default_factory=dict)

    def count_left_out(self, procedure: str, why: str, txn_id: int) -> None:
        known = self.left_out.get((procedure, why), LeftOut(procedure, why, 0, txn_id))
        self.left_out[procedure, why] = LeftOut(procedure, why, known.calls + 1, min(known.first_txn_id, txn_id))

    def add(self, other: RerunTally) -> None:
        """What another partition's calls did."""
        self.compared += other.compared
        self.changed += other.changed
        if other.first is not None and (self.first is None or other.first.txn_id < self.first.txn_id):
            self.first = other.first
        self.statuses.update(other.statuses)
        for key, of in other.left_out.items():
            known = self.left_out.get(key, replace(of, calls=0))
            self.left_out[key] = replace(of, calls=known.calls + of.calls, first_txn_id=min(known.first_txn_id, of.first_txn_id))

    def kept(self) -> dict[str, Any]:
        """All of it; `of_kept` reads it."""
        return {
            "compared": self.compared,
            "changed": self.changed,
            "first": asdict(self.first) if self.first is not None else None,
            "statuses": sorted(self.statuses.items()),
            "left_out": [asdict(of) for of in self.left_out.values()],
        }

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> Self:
        first = Difference(**value["first"]) if value["first"] is not None else None
        tally = cls(value["compared"], value["changed"], first, Counter(dict(value["statuses"])))
        tally.left_out = {(of["procedure"], of["why"]): LeftOut(**of) for of in value["left_out"]}
        return tally


@dataclass(slots=True)
class RerunProgress:
    """How far one partition has come after the fork, and what its calls did."""

    at: int  # index of the last entry of the log that was applied
    shift: int = 0
    entries: int = 0
    calls: int = 0
    tally: RerunTally = field(default_factory=RerunTally)
    gone: list[list[Any]] = field(default_factory=list)  # [index of a batch, positions that the log skips], ascending
    open: list[int] = field(default_factory=list)  # batches of which no digest had come: the log may have grown one since

    def kept(self) -> dict[str, Any]:
        """All of it; `of_kept` reads it."""
        return {
            "at": self.at, "shift": self.shift, "entries": self.entries, "calls": self.calls, "tally": self.tally.kept(),
            "gone": self.gone, "open": self.open,
        }  # fmt: skip

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "tally": RerunTally.of_kept(value["tally"])})


@dataclass(frozen=True, slots=True)
class ForkReport:
    """What a fork did."""

    results: Sequence[PartitionResult]  # by partition: calls after the fork, and where the new node begins
    kept: int  # calls before the fork that were replayed with their own code
    tally: RerunTally
    identity: Identity
    origin: Origin
    catalog: int  # version of the code in the new node
    code: str  # hash of its bundle
    seconds: float
    already: bool = False  # an earlier run has made it; nothing was done

    @property
    def calls(self) -> int:
        return sum(result.calls for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        tally = self.tally
        return {
            "cluster_id": self.identity.cluster_id.hex(),
            "forked_from": {"cluster_id": self.origin.cluster_id.hex(), "txn_id": str(self.origin.txn_id)},
            "catalog": self.catalog,
            "code": self.code,
            "seconds": round(self.seconds, 3),
            "already": self.already,
            "kept": self.kept,
            "calls": self.calls,
            "compared": tally.compared,
            "changed": tally.changed,
            "first": tally.first.to_json() if tally.first else None,
            "statuses": {Status(status).name: calls for status, calls in sorted(tally.statuses.items())},
            "left_out": [of.to_json() for _, of in sorted(tally.left_out.items())],
            "partitions": [
                {"partition": r.partition, "calls": r.calls, "index": r.index, "txn_id": str(r.txn_id)} for r in self.results
            ],
        }
