"""The first pass over a log: what a replay must know before it applies the first entry.

One rule: it reads and counts, it applies nothing. In one sequential pass it gathers, per partition, where the stream ends (or
where `until` ends it), which entries are void because a later term replaced them, which calls a SKIP record skips (it comes
after the batch that it concerns, and must be known before), and what is at the positions that a state file or snapshot claims.

Memory is one number pair per skip, void range, claimed position and multi-partition call, however long the log is; records are
kept for a second look only while they are few (`KEEP_BYTES`), so that a warm restart reads the log's end once.

A SKIP is written before its batch's digest by the node that executed the batch, and after the digest when another node's leader
could not execute what this one could. What no later record makes void is below a commit mark or at the log's end, where the
chosen log counts up to its given last index: so the second pass never waits for a mark to be sure of an entry.

Marks also state up to which TxnId a stream is closed, and that is only as true as their author knew: a leader that was deposed
without knowing it closed what its successor, with a slower clock, wrote to. Where an entry contradicts an earlier mark, the entry
is right (`untrue`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, Self

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.batch import batch_procedures, batch_span, catalog_and_places, decode_batch
from cmdlog.wal.format.control_record import Skip, schema_txn
from cmdlog.wal.format.record import DIGEST, RECORD, Record, RecordKind, decode_commit_mark
from cmdlog.wal.group_state import GroupState, GroupStates, LoggedCatalog
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from cmdlog.wal.skips import VOID, Skips, SkipSet
from procedures.code.procedure_versions import procedures_of
from replay.log.log_fold import Place, StreamFold
from replay.log.source import LogSource
from replay.log.split_calls import PartitionSpan, find_parted

KEEP_BYTES: Final = 8 << 20  # of records that are kept; replayed in the same time as starting a process takes
_BATCH: Final = RecordKind.BATCH
_SKIP: Final = RecordKind.SKIP
_SCHEMA: Final = RecordKind.SCHEMA
_CATALOG: Final = RecordKind.CATALOG
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_DIGEST: Final = RecordKind.DIGEST
_COMMIT_MARK: Final = RecordKind.COMMIT_MARK
_APPLIED: Final = ("to_index", "to_calls", "to_term", "to_checksum")  # numbers of a stream that another process needs


@dataclass(slots=True, kw_only=True)
class ScannedStream(StreamFold):
    """One partition's entries in the scanned range."""

    counted_from: int = 0  # entries after this index are counted
    claimed: frozenset[int] = frozenset()  # indexes at which `seen` is wanted
    until: int | None = None
    base: int = 0  # the log holds every entry after this index
    proved: int = 0  # a digest, or an entry without calls, says that the live run came to here
    to_index: int = 0  # the last entry to be applied
    to_calls: int = -1  # calls of that entry to be applied, -1 = all: `until` may fall inside a batch
    to_term: int = 0
    to_checksum: int = 0
    to_txn: int = 0
    entries: int = 0  # counted, up to to_index
    calls: int = 0
    bytes: int = 0
    calls_of: Counter[tuple[int, int]] = field(default_factory=Counter)  # (catalog version, procedure number) -> of `calls`
    procedures: Mapping[str, int] = field(default_factory=dict)  # the same by name, once the pass has ended
    ended: bool = False  # `until` has passed
    catalogs: set[int] = field(default_factory=set)  # versions that the counted batches run
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # claimed index -> (term, checksum)
    last_term: int = 0  # of the entry at last_index
    start_txn: int = 0  # the highest TxnId up to the index from which is counted
    claimed_txn: int = 0  # the highest TxnId that was stated to be closed, and that no entry has contradicted yet
    untrue: list[Place] = field(default_factory=list)  # of what was stated before there, only that TxnId is closed
    row_digests: bool = False  # the live run took digests of rows
    gapped: bool = False  # blocks are missing after the last record, and nothing has yet said that they held none of this stream

    @property
    def skips(self) -> Skips:
        """Index of a batch -> positions in it that are not run, ascending."""
        return self.skipped.by_batch()

    def line(self, upto: int | None = None) -> PartitionSpan:
        """What is counted, or that up to `upto`, for `replay.log.split_calls`."""
        end, terms = (self.to_index, self.term_table) if upto is None else (upto, self.term_table.upto(upto))
        calls = {txn: call for txn, call in self.multi.items() if self.counted_from < call.index <= end}
        skips, passed = self.skipped.by_batch(upto=upto) if calls else {}, max(self.counted_from, self.executed)
        skipped = {call.index for call in calls.values() if call.index in skips}
        return PartitionSpan(self.start_txn, calls, skipped, set(self.ran), passed, terms)

    def to_json(self) -> dict[str, Any]:
        """What a process or a task that applies the entries has to know; `from_json` reads it."""
        numbers = {name: getattr(self, name) for name in _APPLIED}
        return {
            **numbers,
            "taken_out": [[skip.at, skip.batch, skip.position] for skip in self.skipped],
            "voids": list(self.voids),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        skipped = SkipSet(Skip(at, batch, position) for at, batch, position in value["taken_out"])
        voids = [(block, offset, index) for block, offset, index in value["voids"]]
        return cls(skipped=skipped, voids=voids, **{name: value[name] for name in _APPLIED})

    def end(self) -> None:
        """The log ends. A gap before its end may have held more."""
        if self.gapped and not self._is_final():
            self._lose(self.last_index + 1)

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the stream's next record. Raises: BadRecord when a payload is not what its kind says."""
        kind = record.kind
        if self.gapped and kind < 16:
            self.gapped = False
            if not self._continues(record.index - 1, record.term):
                self._lose(record.index - 1)
        if voided := self.fold(lsn, record):
            self._drop_from(voided)
        if kind < 16:
            if kind is _BATCH and (first := batch_span(record)[0]) <= self.claimed_txn:
                self.claimed_txn = first - 1
                self.untrue.append((int(lsn.block), lsn.offset, first - 1))
            self._note_entry(record)
        elif kind is _COMMIT_MARK:
            self.claimed_txn = max(self.claimed_txn, decode_commit_mark(record))
        elif kind is _DIGEST:
            self.proved = max(self.proved, record.index)
            self.row_digests = self.row_digests or _has_rows(record)
        elif kind is _CHECKPOINT:
            self._note_head(GroupState.from_checkpoint(record))

    def _note_entry(self, record: Record) -> None:
        self.last_term = record.term
        self._note_claim(record.index, record.term, record.checksum)
        if record.kind not in (_BATCH, _SKIP):
            self.proved = record.index
        if self.ended:
            return
        calls, txn_id = self._within(record)
        if self.ended and not calls:
            return
        self.to_index, self.to_term, self.to_checksum = record.index, record.term, record.checksum
        self.to_txn = txn_id or self.to_txn
        if record.index > self.counted_from:
            self._count(record, calls)
        else:
            self.start_txn = max(self.start_txn, txn_id)

    def _drop_from(self, index: int) -> None:
        self.proved = min(self.proved, index - 1)
        self.seen = {at: found for at, found in self.seen.items() if at < index}
        if self.to_index >= index:
            self.to_index, self.ended, self.to_calls = index - 1, False, -1
            self.to_term = self.to_checksum = 0  # not known here

    def _note_head(self, state: GroupState) -> None:
        self.claimed_txn = max(self.claimed_txn, state.closed_txn)
        if state.last_index <= self.counted_from:
            self.start_txn = max(self.start_txn, state.last_txn)
        gapped, self.gapped = self.gapped, False
        if gapped and not self._continues(state.last_index, state.last_term):
            self._lose(state.last_index)
        elif state.last_index <= self.last_index or (self.ended and gapped):
            self.last_index, self.last_term = max(self.last_index, state.last_index), state.last_term
            return
        self.base = self.last_index = self.to_index = state.last_index
        self.term_table = state.terms
        self.to_term, self.to_checksum, self.to_txn = state.last_term, state.last_checksum, 0
        self.last_term = state.last_term
        self._note_claim(state.last_index, state.last_term, state.last_checksum)

    def _count(self, record: Record, calls: int) -> None:
        self.entries += 1
        self.calls += calls
        self.bytes += len(record.raw)
        if record.kind is _BATCH:
            catalog, _ = catalog_and_places(record.raw)
            self.catalogs.add(catalog)
            self.calls_of.update(zip(repeat(catalog), batch_procedures(record)[:calls], strict=False))

    def _within(self, record: Record) -> tuple[int, int]:
        """(calls up to `until`, the last one's TxnId); ends the stream at the first call after `until`."""
        if record.kind is _BATCH:
            _, last, count = batch_span(record)
            if self.until is None or last <= self.until:
                return count, last
            txn_ids = decode_batch(record).txn_ids
            count = sum(1 for txn in txn_ids if txn <= self.until)
            self.ended, self.to_calls = True, count if count else -1
            return count, txn_ids[count - 1] if count else 0
        if record.kind is not _SCHEMA:
            return 0, 0
        txn_id = schema_txn(record)
        self.ended = self.until is not None and txn_id > self.until
        return 0, txn_id

    def _note_claim(self, index: int, term: int, checksum: int) -> None:
        if index in self.claimed:
            self.seen[index] = (term, checksum)

    def _is_final(self) -> bool:
        """The applied part of the stream can neither grow nor be replaced by what was in a gap."""
        return self.ended and (self.executed >= self.to_index or not self.to_index)

    def _continues(self, index: int, term: int) -> bool:
        """Whether the gap before a record that follows entry `index` took nothing from the applied part of the stream.

        An entry is replaced in a higher term only (Raft, section 5.3), and never once it was executed.
        """
        if self.ended:
            return term == self.last_term or self._is_final()
        if index != self.last_index:
            return False
        return term == self.last_term or self.executed >= self.last_index

    def _lose(self, index: int) -> None:
        """Entries up to this one are not all there: the stream begins again after it, and nothing states what was at it."""
        self.base = self.last_index = self.to_index = index
        self.to_calls, self.to_term, self.to_checksum, self.to_txn = -1, 0, 0, 0
        self.proved = self.executed = self.entries = self.calls = self.bytes = 0
        self.ended = False
        self.calls_of.clear()
        self.catalogs, self.voids, self.seen = set(), [], {}
        self.forget_before()
        self.skipped.drop_batches(index)


@dataclass(slots=True)
class Scan:
    """What one pass found."""

    from_block: int
    last_block: int
    streams: dict[int, ScannedStream]
    groups: GroupStates
    row_digests: bool  # the live run took digests of rows
    catalogs: dict[int, LoggedCatalog] = field(default_factory=dict)  # every version met; a later checkpoint may know fewer
    checked_bytes: int = 0  # of the snapshots that were read whole for the plan …
    checked_s: float = 0.0  # … and how long that took
    damage: Corrupt | None = None  # why the pass ended before the log did
    kept: list[tuple[Lsn, Record]] | None = None  # every record of the pass; None when they were too many


def scan(
    source: LogSource,
    indexes: Mapping[int, int],
    claims: Mapping[int, Collection[int]],
    *,
    from_block: int | None = None,
    until: int | None = None,
    accept_data_loss: bool = False,
) -> Scan:
    """Reads from the segment that begins at `from_block`, or from the newest one that will do, to the log's end.

    `indexes` says after which entry of each partition counting begins, `claims` which positions are looked up.

    Raises: Corrupt (with `accept_data_loss` the pass ends there instead), Recycled.
    """
    streams = {
        p: ScannedStream(counted_from=index, claimed=frozenset(claims.get(p, ())), until=until) for p, index in indexes.items()
    }
    from_block = source.start_block(indexes) if from_block is None else from_block
    # Damage ends the pass where the loss is accepted and the block is known; else it is raised.
    found, last_block, damage = _Pass(streams), source.last_block, None
    try:
        for place in source.read_with_gaps(from_block=from_block):
            if place is None:
                found.note_gap()
            else:
                found.observe(*place)
        for stream in streams.values():
            stream.end()
    except Corrupt as error:
        if not accept_data_loss or error.block is None:
            raise
        damage, last_block = error, error.block - 1
    for stream in streams.values():
        stream.procedures = calls_by_name(stream.calls_of, found.catalogs)
    cluster = found.groups.state(CLUSTER_GROUP)
    cluster.last_txn = max(cluster.last_txn, source.txn_id_max)
    row_digests = any(stream.row_digests for stream in streams.values())
    return Scan(from_block, last_block, streams, found.groups, row_digests, found.catalogs, damage=damage, kept=found.kept)


def mark_void(streams: Mapping[int, ScannedStream]) -> None:
    """Notes among the skips of these streams, which are all partitions of a log, the calls that are out for good."""
    for call in find_parted({partition: stream.line() for partition, stream in streams.items()}):
        for partition, index in call.held.items() if call.final and not call.executed else ():
            streams[partition].skipped.add(Skip(0, index, VOID))


class _Pass:
    """Gives each record to the groups and to its stream; keeps every version of the code, and records while they are few."""

    def __init__(self, streams: Mapping[int, ScannedStream]) -> None:
        self.groups, self.catalogs = GroupStates(), dict[int, LoggedCatalog]()
        self.kept: list[tuple[Lsn, Record]] | None = []
        self._streams, self._kept_bytes = streams, 0

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the log's next record."""
        if self.kept is not None:
            self._keep_record(lsn, record)
        self.groups.observe(lsn, record)
        stream = self._streams.get(record.partition)
        if stream is not None:
            stream.observe(lsn, record)
        if record.partition == CLUSTER_GROUP and record.kind in (_CATALOG, _CHECKPOINT):
            self.catalogs |= self.groups.state(CLUSTER_GROUP).catalogs

    def note_gap(self) -> None:
        """Blocks are left out here."""
        for stream in self._streams.values():
            stream.gapped = True

    def _keep_record(self, lsn: Lsn, record: Record) -> None:
        assert self.kept is not None
        self._kept_bytes += len(record.raw)
        self.kept.append((lsn, record))
        if self._kept_bytes > KEEP_BYTES:
            self.kept = None


def calls_by_name(calls_of: Mapping[tuple[int, int], int], catalogs: Mapping[int, LoggedCatalog]) -> dict[str, int]:
    """Procedure -> calls; "" for those whose catalog version the log does not name."""
    found: Counter[str] = Counter()
    for (version, number), calls in sorted(calls_of.items()):
        stated = procedures_of(catalogs[version].value) if version in catalogs else ()
        found[str(stated[number]["name"]) if number < len(stated) else ""] += calls
    return dict(found)


def _has_rows(record: Record) -> bool:
    return len(record.raw) >= RECORD.bytes + DIGEST.bytes and any(record.raw[RECORD.bytes : RECORD.bytes + 8])
