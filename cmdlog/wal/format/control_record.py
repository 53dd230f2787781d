"""Control records: what their JSON payloads say, as values. FORMAT.md "Record".

One rule: a payload is read once, here, and trusted inside. What a checkpoint or a manifest has to repeat word for word is kept
as it was logged (`value`); everything else is a field. The value of a CHECKPOINT is `GroupState` in `cmdlog.wal.group_state`.

Every `from_record` raises BadRecord, which names kind, partition and index, when the payload does not hold what its kind says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from cmdlog.wal.format.record import BadRecord, Record, RecordKind, encode_json

FIRST_EPOCH: Final = 1
MEMBERSHIP: Final = frozenset({"voters", "outgoing", "learners", "epoch", "forced"})  # of a configuration's members


@contextmanager
def naming_record(record: Record) -> Iterator[None]:
    """Whatever is wrong with the payload becomes BadRecord, with the record's place in its group."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadRecord(f"{record.kind.name} of partition {record.partition} at index {record.index}: {what}") from error


class Skip(NamedTuple):
    """SKIP: one call of an earlier batch is not to be run."""

    at: int  # index of the SKIP itself: it is void when its own place is overwritten
    batch: int  # index of the batch
    position: int  # of the call in it
    everywhere: tuple[int, ...] = ()  # of a call on all partitions of a cluster: the index of its batch in each

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            value = record.json()
            everywhere = tuple(map(int, value.get("everywhere", ())))
            return cls(record.index, int(value["index"]), int(value["position"]), everywhere)


def skip_value(index: int, position: int, reason: str, everywhere: Sequence[int] = ()) -> dict[str, Any]:
    """The payload of a SKIP. `everywhere`: as `Skip.everywhere`."""
    value = {"index": index, "position": position, "reason": reason}
    return {**value, "everywhere": list(everywhere)} if everywhere else value


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """SCHEMA: a change of tables outside any batch, one transaction. What it does, `procedures.migration` reads from `value`."""

    txn_id: int
    value: dict[str, Any]

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            value = record.json()
            statements = value["statements"]
            if not isinstance(statements, list):
                raise TypeError("statements are a list")
            return cls(int(value["txn_id"]), {name: member for name, member in value.items() if name != "txn_id"})


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """CATALOG: a version of the code. What the code is, `procedures.code.bundle` reads from `value`."""

    version: int
    value: dict[str, Any]

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            return cls.from_json(record.json())

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        version = value.get("version")
        if not isinstance(version, int):
            raise BadRecord("catalog without a version")
        return cls(version, value)


@dataclass(frozen=True, slots=True)
class GroupConfiguration:
    """CONFIGURATION of the cluster group, as far as it says how calls are placed and remembered. (`replay.log.evidence` reads who
    votes.)"""

    partitions: int = 0  # 0: it does not say it
    epoch: int = 0
    slots: Sequence[int] = ()  # partition of each slot
    key_policy: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            return cls.from_json(record.json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        try:
            partitions, epoch = int(value.get("partitions", 0)), int(value.get("epoch", 0))
        except (TypeError, ValueError) as error:
            raise BadRecord(f"configuration: {error}") from error
        return cls(partitions, epoch, value.get("slots", ()), value.get("key_policy") or {})


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """SNAPSHOT_MARK: a durable, verified snapshot whose last entry is the one at the record's index."""

    checksum: int | None  # of that entry
    log_block: int | None  # the newest block when the snapshot was taken
    value: dict[str, Any]

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            value = record.json()
            return cls(value.get("checksum"), value.get("log_block"), value)

    @staticmethod
    def encode(name: str, report: Mapping[str, Any]) -> bytes:
        """The record of a snapshot; `report` has its partition, index, term, checksum, txn_id and log_block."""
        value = {"name": name, **{key: report[key] for key in ("checksum", "txn_id", "log_block", "index", "term")}}
        place = {key: report[key] for key in ("partition", "term", "index")}
        return encode_json(RecordKind.SNAPSHOT_MARK, value, **place)


def schema_txn(record: Record) -> int:
    """SCHEMA: when it came into force."""
    with naming_record(record):
        return int(record.json().get("txn_id", 0))


def vote_of(record: Record) -> int | None:
    """HARD_STATE: whom the node voted for in the record's term."""
    with naming_record(record):
        vote: int | None = record.json().get("vote")
        return vote


def checksum_before(record: Record) -> int:
    """TRUNCATION: checksum of the last entry that stays; 0 where nothing stays or the record does not say it."""
    with naming_record(record):
        return int(record.json().get("checksum", 0)) if record.payload else 0


def single(configuration: Mapping[str, Any], node_id: int) -> dict[str, Any]:
    """The configuration with the membership of a new cluster: one voter, the first epoch."""
    rest = {name: value for name, value in configuration.items() if name not in MEMBERSHIP}
    return {**rest, "voters": [node_id], "learners": [], "epoch": FIRST_EPOCH}
