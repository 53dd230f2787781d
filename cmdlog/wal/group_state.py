"""The fold: what a log's records say about every group. The same fold feeds the writer's checkpoints and the restart.

One rule: state follows from the records alone, in log order; no clock, no file. `GroupStates.observe` takes each record once, and
`checkpoints()` states the result as records, so that `fold(checkpoint + later records)` equals `fold(all records)`.

An entry whose index is not beyond the last one replaces the old suffix from there on (Ongaro, Raft, section 3.5): whatever the
void entries had established (configuration, catalog versions, environment, schema) is undone. Catalog versions stay in the
checkpoint while a batch of the retained log may use them: that is judged by the last block in which one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from cmdlog.wal.format.batch import BATCH_HEAD, FLAG_TXN_COLUMN, TICK, batch_facts
from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.call_places import TermTable
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.control_record import (
    CatalogVersion,
    GroupConfiguration,
    SnapshotMark,
    checksum_before,
    naming_record,
    vote_of,
)
from cmdlog.wal.format.json_reader import whole_number
from cmdlog.wal.format.record import (
    KIND_OFFSET,
    MARK_HEAD,
    Record,
    RecordKind,
    decode_commit_mark,
    decode_empty,
    encode_json,
    peek_record,
)
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn

_BATCH: Final = RecordKind.BATCH  # looked up once: in Python 3.11 that costs more than the comparison
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_COMMIT_MARK: Final = RecordKind.COMMIT_MARK
_DIGEST: Final = RecordKind.DIGEST
CATALOGS_KEPT_MIN: Final = 4  # newest versions are kept though no retained batch uses them: followers lag
SNAPSHOT_MARKS_KEPT: Final = 2  # the log is cut up to the second-newest snapshot, so both must be known
_NUMBERS: Final = ("term", "commit", "last_index", "last_term", "last_checksum", "closed_txn", "last_txn")  # of a checkpoint


@dataclass(slots=True)
class Stated:
    """What an entry established, with its place in the group's log: void when that place is overwritten. Then `before` holds
    again, what was established before it; it is kept until this entry is committed."""

    index: int
    term: int
    value: dict[str, Any]
    before: Stated | None = None

    @classmethod
    def of(cls, record: Record, before: Stated | None = None, *, commit: int = 0) -> Stated:
        """What a record establishes after `before`, in a group that is committed up to `commit`."""
        if before is not None and before.index <= commit:
            before = cls(before.index, before.term, before.value)
        return cls(record.index, record.term, record.json(), before)

    def committed(self, upto: int) -> Stated | None:
        """What holds of it in a group that is committed up to there."""
        return _before(self, upto + 1)


@dataclass(slots=True)
class LoggedCatalog:
    """A catalog version of the cluster group. `used_block` is the last block with a batch of it, 0 = none yet."""

    index: int
    value: dict[str, Any]
    stated_block: int
    used_block: int = 0


@dataclass(slots=True)
class GroupState:
    """One group, as far as its records in this log show it: what a CHECKPOINT states.

    Invariants: `last_term <= term`; `configurations` ascend by index, and all but the first are beyond `commit`.
    """

    term: int = 0
    vote: int | None = None
    commit: int = 0
    commit_term: int = 0  # that the newest commit mark states: in a cluster's log the term of the entry at `commit`
    last_index: int = 0
    last_term: int = 0
    last_checksum: int = 0
    closed_txn: int = 0
    last_txn: int = 0  # highest TxnId of any batch or closed mark; never goes back
    configurations: list[Stated] = field(default_factory=list)
    schema: Stated | None = None  # the newest SCHEMA entry
    environment: Stated | None = None
    shape: Stated | None = None  # the newest SHAPE entry
    members: dict[int, Stated] = field(default_factory=dict)  # node -> its newest MEMBER entry
    faults: Stated | None = None  # the newest FAULTS entry
    catalogs: dict[int, LoggedCatalog] = field(default_factory=dict)
    snapshots: list[dict[str, Any]] = field(default_factory=list)  # marks, oldest first
    terms: TermTable = field(default_factory=TermTable)  # of its entries

    def __post_init__(self) -> None:
        if not self.terms.rows:
            self.terms = TermTable.beginning(self.last_index, self.last_term)

    @property
    def configuration(self) -> dict[str, Any] | None:
        """The configuration in force: the newest in the log, committed or not (Raft, section 4.1), with the shape."""
        if not self.configurations:
            return None
        members = self.configurations[-1].value
        return members if self.shape is None else {**self.shape.value, **members}

    @classmethod
    def from_checkpoint(cls, record: Record) -> GroupState:
        """Raises: BadRecord."""
        with naming_record(record):
            return cls.from_json(record.json())

    def to_json(self) -> dict[str, Any]:
        """The payload of a CHECKPOINT."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "vote": self.vote,
            "configurations": [[stated.index, stated.term, stated.value] for stated in self.configurations],
            "schema": _stated_to_json(self.schema, self.commit),
            "environment": _stated_to_json(self.environment, self.commit),
            **({"commit_term": self.commit_term} if self.commit and self.commit_term != self.term else {}),
            **({"shape": _stated_to_json(self.shape, self.commit)} if self.shape is not None else {}),
            **({"faults": _stated_to_json(self.faults, self.commit)} if self.faults is not None else {}),
            **(
                {"members": [_stated_to_json(stated, self.commit) for _, stated in sorted(self.members.items())]}
                if self.members
                else {}
            ),
            "catalogs": [[c.index, c.stated_block, c.used_block, c.value] for _, c in sorted(self.catalogs.items())],
            "snapshots": self.snapshots,
            "terms": self.terms.rows,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GroupState:
        """Raises: BadRecord; ValueError, KeyError, TypeError."""
        catalogs = [LoggedCatalog(index, of, stated, used) for index, stated, used, of in value["catalogs"]]
        return cls(
            **{name: whole_number(value[name]) for name in _NUMBERS},
            vote=value["vote"],
            configurations=[Stated(*parts) for parts in value["configurations"]],
            schema=_stated_json(value["schema"]),
            environment=_stated_json(value["environment"]),
            commit_term=int(value.get("commit_term", value["term"] if value["commit"] else 0)),
            shape=_stated_json(value.get("shape")),
            members={
                ClusterMember.from_json(parts[2]).node: stated
                for parts in value.get("members", ())
                if (stated := _stated_json(parts))
            },
            faults=_stated_json(value.get("faults")),
            catalogs={CatalogVersion.from_json(catalog.value).version: catalog for catalog in catalogs},
            snapshots=value["snapshots"],
            terms=TermTable(int(value["last_index"]), [(int(index), int(term)) for index, term in value["terms"]]),
        )


class GroupStates:
    """All groups of a log. One thread at a time."""

    def __init__(self) -> None:
        self.by_partition: dict[int, GroupState] = {}
        self.hard_state_changed = False  # since the owner last looked and cleared it

    @classmethod
    def fold(cls, records: Iterable[tuple[Lsn, Record]]) -> Self:
        """What these records say, in order. Raises: BadRecord; what `records` raises."""
        groups = cls()
        groups.observe_all(records)
        return groups

    def observe_all(self, records: Iterable[tuple[Lsn, Record]]) -> None:
        """Takes the records that follow. Raises: as `fold`."""
        for lsn, record in records:
            self.observe(lsn, record)

    @property
    def cluster(self) -> GroupConfiguration:
        """What the cluster group's configuration in force says; every field's default when the log says none."""
        state = self.by_partition.get(CLUSTER_GROUP)
        return GroupConfiguration.from_json((state.configuration if state is not None else None) or {})

    def state(self, partition: int) -> GroupState:
        """The group's state, made on first sight."""
        state = self.by_partition.get(partition)
        if state is None:
            state = self.by_partition[partition] = GroupState()
        return state

    @property
    def txn_id_max(self) -> int:
        """Highest TxnId that the log knows of, as a number over all partitions."""
        return max((state.last_txn for state in self.by_partition.values()), default=0)

    @property
    def votes(self) -> dict[int, tuple[int, int | None]]:
        """Term and vote of every group that has any."""
        return {p: (state.term, state.vote) for p, state in self.by_partition.items() if state.term}

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record. Raises: BadRecord when a payload is not what its kind says."""
        state = self.state(record.partition)
        kind = record.kind
        if kind is _DIGEST:  # says nothing of the group
            return
        if kind < 16:
            self._entry(state, lsn, record)
        elif kind is _CHECKPOINT:
            self.by_partition[record.partition] = GroupState.from_checkpoint(record)
        elif kind is _COMMIT_MARK:
            _note_commit(state, record.index, record.term, decode_commit_mark(record))
        elif kind is RecordKind.HARD_STATE:
            self._hard_state(state, record.term, vote_of(record))
        elif kind is RecordKind.SNAPSHOT_MARK:
            state.snapshots = [*state.snapshots, SnapshotMark.from_record(record).value][-SNAPSHOT_MARKS_KEPT:]
        elif kind is RecordKind.TRUNCATION:
            _cut(state, record.index)
            state.terms.cut(record.index)
            state.last_index, state.last_term = record.index - 1, record.term
            state.last_checksum = checksum_before(record)

    def observe_block(self, number: int, records: Sequence[bytes]) -> None:
        """Takes the records of a block that this process has just encoded, unchecked. Raises: as `observe`."""
        offset = 0
        for data in records:
            kind = data[KIND_OFFSET]
            if kind == _COMMIT_MARK:
                _, _, _, partition, term, index, _, _, closed_txn = MARK_HEAD.unpack_from(data)
                _note_commit(self.state(partition), index, term, closed_txn)
            elif kind != _DIGEST and not (kind == _BATCH and self._follow(number, data)):
                self.observe(Lsn(BlockNumber(number), offset), peek_record(data))
            offset += len(data) + -len(data) % RECORD_ALIGN

    def merge_vote(self, partition: int, term: int, vote: int | None) -> None:
        """Takes what the hard state file says: the higher term wins, and a vote is never forgotten.

        Raises: ValueError when both name different votes in one term.
        """
        state = self.state(partition)
        if term == state.term and None not in (vote, state.vote) and vote != state.vote:
            raise ValueError(f"group {partition}, term {term}: the log says vote {state.vote}, the hard state file {vote}")
        if term > state.term or (term == state.term and state.vote is None):
            state.term, state.vote = term, vote

    def checkpoints(self, *, oldest_block: int, catalogs_kept: int = CATALOGS_KEPT_MIN) -> list[bytes]:
        """One record per group, by ascending group; `oldest_block` is the first block of the retained log.

        The newest `catalogs_kept` versions of the code stay though no batch of the log uses them.
        """
        records = []
        for partition in sorted(self.by_partition):
            state = self.by_partition[partition]
            _drop_catalogs(state, oldest_block, catalogs_kept)
            records.append(
                encode_json(_CHECKPOINT, state.to_json(), partition=partition, term=state.term, index=state.last_index)
            )
        return records

    def _follow(self, number: int, data: bytes) -> bool:
        """Whether the batch moves numbers alone, after its group's last entry and in its term; they are moved then."""
        _, _, _, partition, term, index, checksum, _, txn, count, version, flags, *_ = BATCH_HEAD.unpack_from(data)
        state = self.by_partition.get(partition)
        if state is None or index <= state.last_index or flags & FLAG_TXN_COLUMN:
            return False
        terms = state.terms
        if not terms.rows or terms.rows[-1][1] != term:
            return False
        state.last_index = terms.last = index
        state.last_term, state.last_checksum = term, checksum
        state.last_txn = max(state.last_txn, txn + (count - 1) * TICK)
        self._use_catalog(version, number)
        return True

    def _use_catalog(self, version: int, block: int) -> None:
        cluster = self.by_partition.get(CLUSTER_GROUP)
        used = cluster.catalogs.get(version) if cluster else None
        if used is not None:
            used.used_block = block

    def _entry(self, state: GroupState, lsn: Lsn, record: Record) -> None:
        # First what every entry says of its group (a suffix replaced, a term, the end), then what its kind establishes.
        if record.index <= state.last_index:
            _cut(state, record.index)
        if record.term > state.term:
            self._hard_state(state, record.term, None)
        state.last_index, state.last_term, state.last_checksum = record.index, record.term, record.checksum
        state.terms.add(record.index, record.term)
        kind = record.kind
        if kind is _BATCH:
            _, last_txn, _, version = batch_facts(record)
            state.last_txn = max(state.last_txn, last_txn)
            self._use_catalog(version, lsn.block)
        elif kind is RecordKind.CONFIGURATION:
            state.configurations.append(Stated.of(record))
            _trim_configurations(state)
        elif kind is RecordKind.CATALOG:
            catalog = CatalogVersion.from_record(record)
            state.catalogs[catalog.version] = LoggedCatalog(record.index, catalog.value, stated_block=lsn.block)
        elif kind is RecordKind.ENVIRONMENT:
            state.environment = Stated.of(record, state.environment, commit=state.commit)
        elif kind is RecordKind.SCHEMA:
            state.schema = Stated.of(record, state.schema, commit=state.commit)
        elif kind is RecordKind.EMPTY:
            state.closed_txn = max(state.closed_txn, decode_empty(record))
            state.last_txn = max(state.last_txn, state.closed_txn)
        elif kind is RecordKind.SHAPE:
            state.shape = Stated.of(record, state.shape, commit=state.commit)
        elif kind is RecordKind.MEMBER:
            node = ClusterMember.from_record(record).node
            state.members[node] = Stated.of(record, state.members.get(node), commit=state.commit)
        elif kind is RecordKind.FAULTS:
            state.faults = Stated.of(record, state.faults, commit=state.commit)

    def _hard_state(self, state: GroupState, term: int, vote: int | None) -> None:
        if (term, vote) != (state.term, state.vote) and term >= state.term:
            state.term, state.vote = term, vote
            self.hard_state_changed = True


def _cut(state: GroupState, index: int) -> None:
    """Undoes what entries from `index` on established. The first configuration is in force until a later one is known."""
    state.configurations = [stated for stated in state.configurations if stated.index < index]
    state.catalogs = {version: c for version, c in state.catalogs.items() if c.index < index}
    state.schema, state.environment = _before(state.schema, index), _before(state.environment, index)
    state.shape, state.faults = _before(state.shape, index), _before(state.faults, index)
    members = {node: _before(stated, index) for node, stated in state.members.items()}
    state.members = {node: stated for node, stated in members.items() if stated is not None}


def _before(stated: Stated | None, index: int) -> Stated | None:
    """What was established below that index."""
    while stated is not None and stated.index >= index:
        stated = stated.before
    return stated


def _note_commit(state: GroupState, index: int, term: int, closed_txn: int) -> None:
    """What a commit mark says."""
    if index > state.commit:
        state.commit, state.commit_term = index, term
    state.closed_txn = max(state.closed_txn, closed_txn)
    state.last_txn = max(state.last_txn, state.closed_txn)
    _trim_configurations(state)


def _trim_configurations(state: GroupState) -> None:
    """Keeps the newest committed configuration and all later ones: what is committed cannot be overwritten."""
    while len(state.configurations) > 1 and state.configurations[1].index <= state.commit:
        state.configurations = state.configurations[1:]


def _drop_catalogs(state: GroupState, oldest_block: int, kept: int) -> None:
    newest = sorted(state.catalogs)[-kept:]
    state.catalogs = {
        version: catalog
        for version, catalog in state.catalogs.items()
        if version in newest or max(catalog.used_block, catalog.stated_block) >= oldest_block
    }


def _stated_json(parts: list[Any] | None) -> Stated | None:
    if not parts:
        return None
    index, term, value, *before = parts
    return Stated(index, term, value, _stated_json(before[0]) if before else None)


def _stated_to_json(stated: Stated | None, commit: int) -> list[Any] | None:
    """With what was established before, while an uncommitted entry hides it."""
    if stated is None:
        return None
    before = _stated_to_json(stated.before, commit) if stated.index > commit else None
    return [stated.index, stated.term, stated.value, *([before] if before else [])]
