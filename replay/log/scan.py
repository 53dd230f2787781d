"""The first pass over a log: what a replay must know before it applies the first entry.

One rule: it reads and counts, it applies nothing. In one sequential pass it gathers, per partition, where the stream ends (or
where `until` ends it), which entries are void because a later term replaced them, which calls a SKIP record takes out (it stands
behind the batch that it concerns, and must be known before), and what stands at the positions that a state file or snapshot
claims.

Memory is one number pair per skip, void range, claimed position and multi-partition call, however long the log is; records are
kept for a second look only while they are few (`KEEP_BYTES`), so that a warm restart reads the log's end once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.format.batch import BATCH, batch_catalog, batch_last_txn, batch_procedures, decode_batch
from cmdlog.wal.format.record import DIGEST, RECORD, Record, RecordKind
from cmdlog.wal.group_state import GroupStates, LoggedCatalog
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures.procedure_versions import procedures_of
from replay.log.source import LogSource
from replay.log.split_calls import PartitionSpan, multi_txn

KEEP_BYTES: Final = 8 << 20  # of records that are kept; replayed in the same time as starting a process takes


@dataclass(slots=True)
class ScannedStream:
    """One partition's entries in the scanned range."""

    base: int = 0  # the log holds every entry behind this index
    last_index: int = 0  # of the stream in the log
    proved: int = 0  # a digest, or an entry without calls, says that the live run came to here
    digested: int = 0  # the last batch whose digest was met: the live run had executed it, so no skip of it can follow
    to_index: int = 0  # the last entry to be applied
    to_calls: int = -1  # calls of that entry to be applied, -1 = all: `until` may fall inside a batch
    to_term: int = 0
    to_checksum: int = 0
    to_txn: int = 0
    entries: int = 0  # behind the index from which is counted, up to to_index
    calls: int = 0
    bytes: int = 0
    calls_of: Counter[tuple[int, int]] = field(
        default_factory=Counter
    )  # (catalog version, procedure number) -> how many of `calls`
    procedures: Mapping[str, int] = field(default_factory=dict)  # the same by name, once the pass has ended
    ended: bool = False  # `until` has passed
    catalogs: set[int] = field(default_factory=set)  # versions that the counted batches run
    taken_out: list[tuple[int, int, int]] = field(default_factory=list)  # of a SKIP: its index, its batch's, position there
    voids: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # (block, offset, index): entries from index on before here are void
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # claimed index -> (term, checksum)
    last_term: int = 0  # of the entry at last_index
    start_txn: int = 0  # the highest TxnId up to the index from which is counted
    multi: dict[int, int] = field(default_factory=dict)  # TxnId -> index of the multi-partition calls that are counted
    gapped: bool = False  # blocks are missing behind the last record, and nothing has yet said that they held none of this stream

    def line(self) -> PartitionSpan:
        """What is counted, for `replay.log.split_calls`."""
        skips = self.skips if self.multi else {}
        skipped = {index for index in self.multi.values() if index in skips}
        return PartitionSpan(self.start_txn, dict(self.multi), skipped, self.digested)

    def to_json(self) -> dict[str, Any]:
        """What another process needs to know to apply its entries; `from_json` reads it."""
        return {
            "to_index": self.to_index,
            "to_calls": self.to_calls,
            "to_term": self.to_term,
            "to_checksum": self.to_checksum,
            "taken_out": list(self.taken_out),
            "voids": list(self.voids),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        skips, voids = ([(a, b, c) for a, b, c in value[name]] for name in ("taken_out", "voids"))
        return cls(**{**value, "taken_out": skips, "voids": voids})

    @property
    def skips(self) -> dict[int, tuple[int, ...]]:
        """Index of a batch -> positions in it that are not run, ascending."""
        return skips_of(self.taken_out)


@dataclass(slots=True)
class Scan:
    """What one pass found."""

    from_block: int
    last_block: int
    streams: dict[int, ScannedStream]
    groups: GroupStates
    catalogs: dict[int, LoggedCatalog] = field(default_factory=dict)  # every version met; a later checkpoint may know fewer
    digests: int = 0
    row_digests: bool = False  # the live run took digests of rows
    checked_bytes: int = 0  # of the snapshots that were read whole for the plan …
    checked_s: float = 0.0  # … and how long that took
    damage: Corrupt | None = None  # why the pass ended before the log did
    kept: list[tuple[Lsn, Record]] | None = None  # every record of the pass; None when they were too many


def skips_of(taken_out: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, ...]]:
    """Index of a batch -> positions in it that are not run, ascending; of SKIPs as `ScannedStream.taken_out` holds them."""
    found: dict[int, set[int]] = {}
    for _, index, position in taken_out:
        found.setdefault(index, set()).add(position)
    return {index: tuple(sorted(positions)) for index, positions in sorted(found.items())}


def start_block(source: LogSource, indexes: Mapping[int, int]) -> int:
    """First block of the newest segment from which every entry behind these indexes (partition -> index) can be read.

    The oldest segment's if none is. Found by halves, since streams grow: an archive may have thousands of segments.
    """

    def reaches(first: int) -> bool:
        groups = source.checkpoint(first).by_partition
        return all(p in groups and groups[p].last_index <= index for p, index in indexes.items())

    low, high = 0, len(source.first_blocks)  # the answer is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reaches(source.first_blocks[middle]) else (low, middle)
    return source.first_blocks[low]


def scan(
    source: LogSource,
    from_block: int,
    indexes: Mapping[int, int],
    claims: Mapping[int, Collection[int]],
    *,
    until: int | None = None,
    accept_data_loss: bool = False,
) -> Scan:
    """Reads from the segment that begins there to the log's end.

    `indexes` says from where is counted, `claims` which positions are looked up.

    Raises: Corrupt (with `accept_data_loss` the pass ends there instead), Recycled.
    """
    result = Scan(from_block, source.last_block, {p: ScannedStream() for p in indexes}, GroupStates(), kept=[])
    pass_ = _ScanPass(result, indexes, {p: frozenset(found) for p, found in claims.items()}, until)
    met = 0
    try:
        for lsn, record in source.read(from_block=from_block):
            if source.patchwork is not None and source.patchwork.met != met:
                met = source.patchwork.met
                pass_.note_gap()
            pass_.take(lsn, record)
        if source.patchwork is not None and source.patchwork.met != met:
            pass_.note_gap()
        pass_.close()
    except Corrupt as damage:
        if not accept_data_loss or damage.block is None:
            raise
        result.damage, result.last_block = damage, damage.block - 1
    for stream in result.streams.values():
        stream.procedures = calls_by_name(stream.calls_of, result.catalogs)
    cluster = result.groups.state(CLUSTER_GROUP)
    cluster.last_txn = max(cluster.last_txn, source.txn_id_max)
    return result


class _ScanPass:
    """The state of one pass."""

    def __init__(self, result: Scan, indexes: Mapping[int, int], claims: Mapping[int, frozenset[int]], until: int | None) -> None:
        self._result, self._indexes, self._claims, self._until = result, indexes, claims, until
        self._kept_bytes = 0

    def take(self, lsn: Lsn, record: Record) -> None:
        result = self._result
        self._keep(lsn, record)
        result.groups.observe(lsn, record)
        self._note_catalogs(record)
        stream = result.streams.get(record.partition)
        if stream is None:
            return
        if record.is_entry:
            self._entry(stream, lsn, record)
        elif record.kind is RecordKind.DIGEST:
            result.digests += 1
            result.row_digests = result.row_digests or _has_rows(record)
            stream.proved = max(stream.proved, record.index)
            stream.digested = max(stream.digested, record.index)
        elif record.kind is RecordKind.CHECKPOINT:
            self._checkpoint(stream, record)
        elif record.kind is RecordKind.TRUNCATION:
            self._void(stream, lsn, record.index)

    def note_gap(self) -> None:
        """Blocks are left out here."""
        for stream in self._result.streams.values():
            stream.gapped = True

    def close(self) -> None:
        """A gap at the end may have held more."""
        for stream in self._result.streams.values():
            if stream.gapped and not _is_final(stream):
                _lose(stream, stream.last_index + 1)

    def _note_catalogs(self, record: Record) -> None:
        if record.partition == CLUSTER_GROUP and record.kind in (RecordKind.CATALOG, RecordKind.CHECKPOINT):
            self._result.catalogs |= self._result.groups.state(CLUSTER_GROUP).catalogs

    def _keep(self, lsn: Lsn, record: Record) -> None:
        kept = self._result.kept
        if kept is None:
            return
        self._kept_bytes += len(record.raw)
        if self._kept_bytes > KEEP_BYTES:
            self._result.kept = None
        else:
            kept.append((lsn, record))

    def _checkpoint(self, stream: ScannedStream, record: Record) -> None:
        state = self._result.groups.by_partition[record.partition]
        if state.last_index <= self._indexes[record.partition]:
            stream.start_txn = max(stream.start_txn, state.last_txn)
        gapped, stream.gapped = stream.gapped, False
        if gapped and not _goes_on(stream, state.last_index, state.last_term):
            _lose(stream, state.last_index)
        elif state.last_index <= stream.last_index or (stream.ended and gapped):
            stream.last_index, stream.last_term = max(stream.last_index, state.last_index), state.last_term
            return
        stream.base = stream.last_index = stream.to_index = state.last_index
        stream.to_term, stream.to_checksum, stream.to_txn = state.last_term, state.last_checksum, 0
        stream.last_term = state.last_term
        self._note_claim(stream, record.partition, state.last_index, state.last_term, state.last_checksum)

    def _entry(self, stream: ScannedStream, lsn: Lsn, record: Record) -> None:
        if stream.gapped:
            stream.gapped = False
            if not _goes_on(stream, record.index - 1, record.term):
                _lose(stream, record.index - 1)
        if record.index <= stream.last_index:
            self._void(stream, lsn, record.index)
        stream.last_index, stream.last_term = record.index, record.term
        self._note_claim(stream, record.partition, record.index, record.term, record.checksum)
        if record.kind not in (RecordKind.BATCH, RecordKind.SKIP):
            stream.proved = record.index
        if (
            record.kind is RecordKind.SKIP
        ):  # also behind `until`: the batch that it concerns stands before it, and nobody else says so
            value = record.json()
            stream.taken_out.append((record.index, int(value["index"]), int(value["position"])))
        if stream.ended:
            return
        calls, txn_id = self._within(stream, record)
        if stream.ended and not calls:
            return
        stream.to_index, stream.to_term, stream.to_checksum = record.index, record.term, record.checksum
        stream.to_txn = txn_id or stream.to_txn
        if record.index > self._indexes[record.partition]:
            stream.entries += 1
            stream.calls += calls
            stream.bytes += len(record.raw)
            if record.kind is RecordKind.BATCH:
                catalog = batch_catalog(record)
                stream.catalogs.add(catalog)
                stream.calls_of.update((catalog, number) for number in batch_procedures(record)[:calls])
                if txn := multi_txn(record):
                    stream.multi[txn] = record.index
        else:
            stream.start_txn = max(stream.start_txn, txn_id)

    def _within(self, stream: ScannedStream, record: Record) -> tuple[int, int]:
        """(calls up to `until`, the last one's TxnId); ends the stream at the first call behind `until`."""
        if record.kind is RecordKind.BATCH:
            last = batch_last_txn(record)
            if self._until is None or last <= self._until:
                return batch_calls(record), last
            txn_ids = decode_batch(record).txn_ids
            count = sum(1 for txn in txn_ids if txn <= self._until)
            stream.ended, stream.to_calls = True, count if count else -1
            return count, txn_ids[count - 1] if count else 0
        txn_id = 0
        if record.kind in (RecordKind.SCHEMA, RecordKind.SKIP):
            txn_id = int(record.json().get("txn_id", 0))
            stream.ended = record.kind is RecordKind.SCHEMA and self._until is not None and txn_id > self._until
        return 0, txn_id if record.kind is RecordKind.SCHEMA else 0

    def _void(self, stream: ScannedStream, lsn: Lsn, index: int) -> None:
        stream.voids.append((lsn.block, lsn.offset, index))
        stream.last_index = index - 1
        stream.proved, stream.digested = min(stream.proved, index - 1), min(stream.digested, index - 1)
        stream.seen = {at: found for at, found in stream.seen.items() if at < index}
        stream.taken_out = [skip for skip in stream.taken_out if skip[0] < index]
        stream.multi = {txn: at for txn, at in stream.multi.items() if at < index}
        if stream.to_index >= index:
            stream.to_index, stream.ended, stream.to_calls = index - 1, False, -1
            stream.to_term = stream.to_checksum = 0  # not known here

    def _note_claim(self, stream: ScannedStream, partition: int, index: int, term: int, checksum: int) -> None:
        if index in self._claims.get(partition, ()):
            stream.seen[index] = (term, checksum)


def _is_final(stream: ScannedStream) -> bool:
    """What is applied of the stream can neither grow nor be replaced by what was in a gap."""
    return stream.ended and (stream.digested >= stream.to_index or not stream.to_index)


def _goes_on(stream: ScannedStream, index: int, term: int) -> bool:
    """Whether the gap before a record that follows entry `index` took nothing of the stream that is applied.

    An entry is replaced in a higher term only (Raft, section 5.3), and never once it was executed.
    """
    if stream.ended:
        return term == stream.last_term or _is_final(stream)
    if index != stream.last_index:
        return False
    return term == stream.last_term or stream.digested >= stream.last_index


def _lose(stream: ScannedStream, index: int) -> None:
    """Entries up to this one are not all there: the stream begins anew behind it, and nothing tells what stands at it."""
    stream.base = stream.last_index = stream.to_index = index
    stream.to_calls, stream.to_term, stream.to_checksum, stream.to_txn = -1, 0, 0, 0
    stream.proved = stream.digested = stream.entries = stream.calls = stream.bytes = 0
    stream.ended = False
    stream.calls_of.clear()
    stream.catalogs, stream.voids, stream.seen, stream.multi = set(), [], {}, {}
    stream.taken_out = [skip for skip in stream.taken_out if skip[1] > index]


def calls_by_name(calls_of: Mapping[tuple[int, int], int], catalogs: Mapping[int, LoggedCatalog]) -> dict[str, int]:
    """Procedure -> calls; "" for those whose catalog version the log does not name."""
    found: Counter[str] = Counter()
    for (version, number), calls in sorted(calls_of.items()):
        stated = procedures_of(catalogs[version].value) if version in catalogs else ()
        found[str(stated[number]["name"]) if number < len(stated) else ""] += calls
    return dict(found)


def batch_calls(record: Record) -> int:
    """Number of calls of a batch, without decoding it."""
    count: int = BATCH.unpack_from(record.raw, RECORD.bytes)[1]
    return count


def _has_rows(record: Record) -> bool:
    return len(record.raw) >= RECORD.bytes + DIGEST.bytes and any(record.raw[RECORD.bytes : RECORD.bytes + 8])


def cluster_policy(groups: GroupStates) -> dict[str, int]:
    """The key policy of the configuration in force; {} when the log says none."""
    configuration = groups.state(CLUSTER_GROUP).configuration or {}
    policy: dict[str, int] = configuration.get("key_policy") or {}
    return policy
