"""The plan of a recovery from one node's directory, as a value and as a file, and the log that it is carried out from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Literal

import orjson

from cmdlog.wal.directory.instance import IdentityText
from cmdlog.wal.files import Files
from cmdlog.wal.format.json_reader import read_document
from cmdlog.wal.format.record import Record
from cmdlog.wal.ids import Lsn
from replay.errors import BadPlan
from replay.log.archive_reach import source_from
from replay.log.salvage import Gap
from replay.log.scan import Scan
from replay.log.source import LogSource
from replay.log.spans import salvage
from replay.log.split_calls import PartedCall
from snapshot.catalog import Passed

FORMAT: Final = 1
PLAN_BYTES_MAX: Final = 64 << 20  # as a file
Kind = Literal["state", "snapshot", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """The planned replay of one partition."""

    partition: int
    source: Kind
    name: str = ""  # path of the state file, or name of the snapshot; "" for nothing
    from_index: int  # entries after it are applied …
    from_term: int = 0
    from_checksum: int = 0
    to_index: int  # … up to this one
    to_term: int = 0  # 0: not known
    to_checksum: int = 0
    to_calls: int = -1  # calls of the last entry that are applied; -1 = all
    to_txn: int
    entries: int = 0
    calls: int = 0
    bytes: int = 0
    why: str = ""
    procedures: Mapping[str, int] = field(default_factory=dict)  # name -> how many of `calls`
    snapshot_bytes: int = 0  # that are restored first
    passed: tuple[Passed, ...] = ()  # sources that were not used
    set_aside: tuple[str, ...] = ()  # snapshots that the log contradicts
    skips: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # index -> positions that are not run
    voids: tuple[tuple[int, int, int], ...] = ()  # (block, offset, index): entries from index on that come before are void
    dropped: tuple[int, ...] = ()  # multi-partition calls that not every partition holds: noted, not run

    def settled(self, found: Iterable[PartedCall]) -> PartitionPlan:
        """The plan, or a piece of one, with each of these calls dropped or skipped where it holds it."""
        held = [(call, index) for call in found if (index := call.held.get(self.partition)) is not None]
        inside = [(call, index) for call, index in held if self.from_index < index <= self.to_index and not call.is_loss]
        dropped = {index for call, index in inside if call.lacking} - set(self.dropped)
        skips = {index: (0,) for call, index in held if not call.lacking}
        if not dropped and not skips:
            return self
        every = tuple(sorted(dropped | set(self.dropped)))
        return replace(self, dropped=every, skips={**self.skips, **skips}, calls=self.calls - len(dropped))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recovery of one node directory."""

    directory: str
    cluster_id: str
    node_id: int
    incarnation: str
    verdict: str  # row of the restart table
    from_block: int  # the log is read from here …
    last_block: int  # … to here
    until: int | None  # no call with a higher TxnId is applied
    row_digests: bool  # the live run took digests of rows, so the replay does
    partitions: tuple[PartitionPlan, ...]
    notes: tuple[str, ...] = ()  # what is lost or unusual, in words
    archive: tuple[str, ...] = ()  # names of the archived segments that are read before, or instead of, the live ones
    gaps: tuple[Gap, ...] = ()  # blocks that cannot be read, and need not be
    salvaged: bool = False  # the log is read around whatever is damaged (`replay.log.spans`)
    origins: Mapping[int, str] = field(default_factory=dict)  # partition -> directory of its snapshot, when it is another one
    catalogs: tuple[Mapping[str, Any], ...] = ()  # code that the log at hand may not name
    key_policy: Mapping[str, int] = field(default_factory=dict)  # in force where the log begins, unless it states another
    open_calls: bool = False  # some of `dropped` are undecided where the log ends: what it gets next might bring them

    @property
    def identity(self) -> IdentityText:
        """Of the node whose log is read."""
        return {"cluster_id": self.cluster_id, "node_id": self.node_id, "incarnation": self.incarnation}

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.partitions)

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.partitions)

    @property
    def log_bytes(self) -> int:
        return sum(part.bytes for part in self.partitions)

    def to_json(self) -> bytes:
        """The plan as a file; `from_json` reads it."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Raises: BadPlan."""
        try:
            return cls.from_value(read_document(data, bytes_max=PLAN_BYTES_MAX))
        except ValueError as error:
            raise BadPlan(f"not a recovery plan: {error}") from error

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Plan:
        """The same, read as JSON. Raises: BadPlan."""
        try:
            value = dict(value)
            if value.pop("format") != FORMAT:
                raise BadPlan(f"the plan has another format than {FORMAT}")
            value["partitions"] = tuple(_part_from_json(part) for part in value["partitions"])
            value["notes"] = tuple(value["notes"])
            value["archive"] = tuple(value.get("archive", ()))
            value["gaps"] = tuple((int(first), int(last)) for first, last in value.get("gaps", ()))
            value["origins"] = {int(partition): str(directory) for partition, directory in value.get("origins", {}).items()}
            value["catalogs"] = tuple(value.get("catalogs", ()))
            return cls(**value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadPlan(f"not a recovery plan: {error}") from error


@dataclass(frozen=True)
class Planned:
    """A plan and the log that it is carried out from. A plan out of a file opens its log when it is first needed."""

    plan: Plan
    open_log: Callable[[], LogSource]
    made_from: Scan | None = None  # the pass over the log; None: the plan was not made here

    @classmethod
    def of(cls, files: Files, plan: Plan) -> Planned:
        """Of a plan alone."""
        return cls(plan, partial(source_of_plan, files, plan))

    def with_parts(self, parts: Iterable[PartitionPlan]) -> Planned:
        """The same with these partitions instead."""
        return replace(self, plan=replace(self.plan, partitions=tuple(parts)))

    def only(self, partition: int) -> Planned:
        """The plan of one partition."""
        return self.with_parts(part for part in self.plan.partitions if part.partition == partition)

    @cached_property
    def source(self) -> LogSource:
        """Raises: WalError, PlanOutdated when the log is no longer there."""
        return self.open_log()

    @property
    def scan(self) -> Scan:
        """Of a plan that was made here."""
        assert self.made_from is not None, "a plan out of a file has no pass over the log"
        return self.made_from

    def records(self) -> Iterable[tuple[Lsn, Record]]:
        """What is applied: what the pass over the log has kept, or read again."""
        if self.made_from is not None and self.made_from.kept is not None:
            return self.made_from.kept
        return self.source.read(from_block=self.plan.from_block, upto_block=self.plan.last_block)


def source_of_plan(files: Files, plan: Plan) -> LogSource:
    """The log as the plan reads it. Raises: WalError, PlanOutdated when it no longer exists."""
    if plan.salvaged:
        return salvage(files, plan.directory)
    return source_from(files, plan.directory, plan.from_block, plan.gaps)


def _part_from_json(value: dict[str, Any]) -> PartitionPlan:
    part = PartitionPlan(**value)
    return replace(
        part,
        passed=tuple(Passed(**passed) for passed in value["passed"]),
        set_aside=tuple(value["set_aside"]),
        skips={int(index): tuple(positions) for index, positions in value["skips"].items()},
        dropped=tuple(value.get("dropped", ())),
        voids=tuple((int(block), int(offset), int(index)) for block, offset, index in value["voids"]),
    )
