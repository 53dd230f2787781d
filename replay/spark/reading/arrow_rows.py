"""A task's blocks into Arrow record batches, from the columns that the log has.

One rule: no work per row but numpy's and Arrow's; a column that was not requested is not made. A difference from the plan is an
error that names segment and offset, before any row of that block is returned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import BATCH, FLAG_KEYS, FLAG_TXN_COLUMN, FLAG_ZSTD, NO_KEY, decode_batch
from cmdlog.wal.format.record import RECORD, BadRecord, Record, RecordKind
from cmdlog.wal.ids import MILLIS_SHIFT
from cmdlog.wal.reader import ReadBlock, Recycled, read_segment
from replay.log.log_fold import Lowest
from replay.spark.base.filesystems import open_place
from replay.spark.base.malloc_tuning import keep_freed
from replay.spark.base.options import ParamsFormat
from replay.spark.reading.batch_columns import TICK, BadBatch, Columns, check_batches, column_of
from replay.spark.reading.params_json import Ints, ParameterNames, Texts, lists, number_array, objects, pick, string_array
from replay.spark.reading.read_task import DataLoss, Stretch, Task, Want

ROWS_MAX: Final = 10_000  # of one record batch: Spark does not cut those that a source gives
TEXT_BYTES_MAX: Final = 8 << 20  # of parameters that are gathered for one; a single entry may hold more
PROCEDURES_MAX: Final = 1 << 16  # of a catalog: the log has two bytes for the number of one
KEY_BYTES: Final = len(NO_KEY)
LIST_BYTES_MIN: Final = 2  # of the shortest text of parameters, with the character after it
_KEYS_AT: Final = RECORD.bytes + BATCH.bytes  # the first column, where a batch has keys
_COUNT, _JSON_BYTES = (
    slice(field.offset, field.offset + field.size) for field in BATCH.fields if field.name in ("count", "json_bytes")
)
TYPES: Final[Mapping[str, pa.DataType]] = {
    "partition_id": pa.int32(),
    "txn_id": pa.int64(),
    "procedure": pa.string(),
    "ts": pa.timestamp("us", "UTC"),
    "params": pa.string(),
    "_node": pa.int32(),
    "_segment": pa.string(),
    "_block_offset": pa.int64(),
    "_crc": pa.int64(),
    "_key": pa.binary(),
}


def schema_of(columns: Sequence[str], params_format: ParamsFormat) -> pa.Schema:
    """The columns as Spark's schema has them."""
    types = {**TYPES, "params": pa.binary()} if params_format == "binary" else TYPES
    return pa.schema([(name, types[name]) for name in columns])


class _CodeLost(DataLoss):
    """No record names the procedures of a version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"calls of catalog version {version} cannot be named: no log at hand has its catalog record")
        self.version = version


@dataclass(slots=True)
class _Gathered:
    """Batches that are turned into rows together."""

    records: list[Record] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)  # (path of the segment, offset of the block)
    calls: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Code:
    """All procedures of all catalog versions under one number each."""

    firsts: Mapping[int, int]  # version -> number of its first procedure
    counts: Mapping[int, int]
    names: pa.StringArray
    keys: ParameterNames
    wanted: npt.NDArray[np.bool_] | None  # None: all

    @classmethod
    def of(cls, task: Task) -> _Code:
        firsts, counts, listed = dict[int, int](), dict[int, int](), list[tuple[str, tuple[str, ...] | None]]()
        for version, procedures in sorted(task.names.items()):
            firsts[version], counts[version] = len(listed), len(procedures)
            listed += procedures
        wanted = None
        if task.procedures is not None:
            wanted = np.array([name in task.procedures for name, _ in listed], dtype=np.bool_)
        names = string_array([name for name, _ in listed])
        return cls(firsts, counts, names, ParameterNames.of([parameters for _, parameters in listed]), wanted)


def read_task(task: Task, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The task's rows, in the order of the log. Raises: Corrupt, Recycled, DataLoss."""
    keep_freed()
    files, _ = open_place(task.path)
    made = _Maker(task, columns)
    gathered = _Gathered()
    try:
        for stretch in task.stretches:
            for block in _blocks(files, stretch, fail=task.fail_on_data_loss):
                before = gathered.calls
                made.gather(block, gathered)
                if 2 * gathered.calls - before > ROWS_MAX or gathered.bytes >= TEXT_BYTES_MAX:  # another such block is too much
                    yield from made.batches(gathered)
                    gathered = _Gathered()
    except Corrupt:
        if task.fail_on_data_loss:
            raise
    yield from made.batches(gathered)


def _blocks(files: Files, stretch: Stretch, *, fail: bool) -> Iterator[ReadBlock]:
    """Ends at a block that went bad since the plan was made, or raises if it must `fail` there. Raises: Corrupt, Recycled."""
    try:
        yield from read_segment(files, stretch.segment, upto=stretch.upto, start=stretch.start)
    except FileNotFoundError as error:
        raise Recycled(
            f"segment {stretch.segment.sequence} ({stretch.segment.path}) was recycled since the read began"
        ) from error
    except Corrupt:
        if fail:
            raise


class _Maker:
    """Makes rows of one task."""

    def __init__(self, task: Task, columns: Sequence[str]) -> None:
        self._task, self._code = task, _Code.of(task)
        self._schema = schema_of(columns, task.params_format)
        self._lowest = {partition: Lowest(want.voids) for partition, want in task.wants.items() if want.voids}

    def gather(self, block: ReadBlock, into: _Gathered) -> None:
        """Takes the block's batches that count. Raises: Corrupt."""
        for lsn, record in block.records():
            want = self._task.wants.get(record.partition) if record.kind is RecordKind.BATCH else None
            if want is None or not any(after < record.index <= upto for after, upto in want.ranges):
                continue
            lowest = self._lowest.get(record.partition)
            if lowest is not None and lowest.next_after(lsn) <= record.index:
                continue
            into.records.append(record)
            into.wants.append(want)
            into.places.append((block.path, block.offset))
            head = record.raw[RECORD.bytes : RECORD.bytes + BATCH.bytes]
            into.calls += int.from_bytes(head[_COUNT], "little")
            into.bytes += int.from_bytes(
                head[_JSON_BYTES], "little"
            )  # unpacked, so that a small record cannot become a huge text

    def batches(self, gathered: _Gathered) -> Iterator[pa.RecordBatch]:
        """Raises: Corrupt, DataLoss."""
        if not gathered.records:
            return
        try:
            rows = self._rows(gathered)
            made = pa.RecordBatch.from_arrays([self._column(name, rows) for name in self._schema.names], schema=self._schema)
        except BadBatch as bad:
            raise _corrupt(gathered, gathered.records.index(bad.record), str(bad)) from bad
        for at in range(0, made.num_rows, ROWS_MAX):
            yield made.slice(at, ROWS_MAX)

    def _rows(self, gathered: _Gathered) -> _Rows:
        """Calls of code that was lost are named by number, if loss is accepted. Raises: Corrupt, DataLoss, BadBatch."""
        columns = check_batches(gathered.records)
        while True:
            try:
                return _Rows(gathered, columns, self._code)
            except _CodeLost as lost:
                if self._task.fail_on_data_loss:
                    raise
                numbers = tuple((f"number {number}", None) for number in range(PROCEDURES_MAX))
                self._task = replace(self._task, names={**self._task.names, lost.version: numbers})
                self._code = _Code.of(self._task)

    def _column(self, name: str, rows: _Rows) -> pa.Array:
        if name == "txn_id":
            return number_array(rows.txn_ids, TYPES[name])
        if name == "ts":
            return number_array((rows.txn_ids >> MILLIS_SHIFT) * 1000, TYPES[name])
        if name == "procedure":
            return pick(self._code.names, rows.procedures)
        if name == "params":
            if self._task.params_format != "object":
                return lists(rows.texts()).cast(self._schema.field(name).type)
            return objects(rows.texts(), self._code.keys, rows.procedures)
        if name == "_segment":
            paths = string_array([os.path.basename(path) for path, _ in rows.gathered.places])
            return pick(paths, rows.spread(np.arange(len(paths), dtype=np.int32)))
        if name == "_key":
            return rows.names().array()
        per_batch = {
            "partition_id": lambda: [record.partition for record in rows.gathered.records],
            "_node": lambda: [self._task.node_id] * len(rows.gathered.records),
            "_block_offset": lambda: [offset for _, offset in rows.gathered.places],
            "_crc": lambda: [record.checksum for record in rows.gathered.records],
        }[name]()
        return number_array(rows.spread(np.array(per_batch, dtype=TYPES[name].to_pandas_dtype())), TYPES[name])


class _Rows:
    """The wanted rows of some batches."""

    def __init__(self, gathered: _Gathered, columns: Columns, code: _Code) -> None:
        self.gathered, self._columns = gathered, columns
        heads = [BATCH.unpack_from(record.raw, RECORD.bytes) for record in gathered.records]
        self._texts_end = [len(record.raw) - head[5] for record, head in zip(gathered.records, heads, strict=True)]
        self._texts_at = [end - head[6] for end, head in zip(self._texts_end, heads, strict=True)]
        self._zeros = columns.counts.cumsum() - columns.counts  # rows before each batch
        self._chosen: Ints | None = None
        self.txn_ids = self.spread(columns.firsts - self._zeros * TICK)
        self.txn_ids += np.arange(0, len(self.txn_ids) * TICK, TICK)
        for number in np.flatnonzero(columns.flags & FLAG_TXN_COLUMN).tolist():
            column = column_of(gathered.records[number])
            assert column is not None
            self.txn_ids[self._zeros[number] : self._zeros[number] + len(column)] = column
        self.procedures = self._numbered([head[2] for head in heads], code)
        self._chosen = self._wanted(code)
        if self._chosen is not None:
            self.txn_ids, self.procedures = self.txn_ids[self._chosen], self.procedures[self._chosen]

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Spreads values per batch over the rows."""
        spread = values.repeat(self._columns.counts)
        return spread if self._chosen is None else spread[self._chosen]

    def _numbered(self, catalogs: Sequence[int], code: _Code) -> npt.NDArray[np.int32]:
        """The procedures. Raises: _CodeLost, Corrupt."""
        for version in sorted(set(catalogs)):
            if version not in code.firsts:
                raise _CodeLost(version)
        parts = [
            record.raw[at - 2 * count : at]
            for record, at, count in zip(self.gathered.records, self._texts_at, self._columns.counts.tolist(), strict=True)
        ]
        local = np.frombuffer(b"".join(parts), np.uint16)
        counts = np.array([code.counts[version] for version in catalogs], dtype=np.int32)
        if len(local) and local.max() >= counts.min() and len(beyond := np.flatnonzero(local >= self.spread(counts))):
            number, what = self._batch_of(int(beyond[0])), f"call of procedure {int(local[beyond[0]])}"
            raise _corrupt(self.gathered, number, f"{what} of catalog version {catalogs[number]}, which has fewer")
        firsts = self.spread(np.array([code.firsts[version] for version in catalogs], dtype=np.int32))
        firsts += local
        return firsts

    def _batch_of(self, row: int) -> int:
        return int(np.searchsorted(self._zeros, row, side="right")) - 1

    def _wanted(self, code: _Code) -> Ints | None:
        """Which rows; None: all."""
        wants = self.gathered.wants
        low, high = (np.array(bound, dtype=np.int64) for bound in zip(*((want.low, want.high) for want in wants), strict=True))
        inside = (self.txn_ids[self._zeros] >= low) & (self.txn_ids[self._zeros + self._columns.counts - 1] <= high)
        skips = [
            int(zero) + position
            for zero, record, want in zip(self._zeros, self.gathered.records, wants, strict=True)
            for position in (want.skips.get(record.index, ()) if want.skips else ())
        ]
        if inside.all() and not skips and code.wanted is None:
            return None
        kept = (self.txn_ids >= self.spread(low)) & (self.txn_ids <= self.spread(high))
        kept[skips] = False
        if code.wanted is not None:
            kept &= code.wanted[self.procedures]
        return None if kept.all() else np.flatnonzero(kept)

    def names(self) -> _Names:
        """The names of the calls."""
        parts = list[bytes]()
        for record, count, flag in zip(
            self.gathered.records, self._columns.counts.tolist(), self._columns.flags.tolist(), strict=True
        ):
            parts.append(record.raw[_KEYS_AT : _KEYS_AT + KEY_BYTES * count] if flag & FLAG_KEYS else NO_KEY * count)
        keys = np.frombuffer(b"".join(parts), np.uint64).reshape(-1, 2)
        given: npt.NDArray[np.bool_] = (keys != 0).any(axis=1)
        found = _Names(keys, given, None)
        if (sessions := self._columns.sessions) is not None:
            mine, words = sessions.in_session(), sessions.names()
            words[~mine, :2] = keys[~mine]
            found = _Names(words, given | mine, mine)
        return found if self._chosen is None else found.only(self._chosen)

    def texts(self) -> Texts:
        """The parameter lists. Raises: Corrupt, BadBatch."""
        parts, offsets = list[memoryview](), list[bytes]()
        counts, flags = self._columns.counts.tolist(), self._columns.flags.tolist()
        columns = zip(self.gathered.records, self._texts_at, self._texts_end, counts, flags, strict=True)
        for record, at, end, count, flag in columns:
            text = memoryview(_unpacked(record) if flag & FLAG_ZSTD else record.raw)
            parts.append(text[1:] if flag & FLAG_ZSTD else text[at + 1 : end])  # what follows the bracket that opens a batch
            offsets.append(record.raw[at - 6 * count - 4 : at - 2 * count - 4])
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        bounds = np.empty(sum(counts) + 1, dtype=np.int64)
        bounds[-1] = lengths.sum() + 1
        np.add((lengths.cumsum() - lengths).repeat(counts), np.frombuffer(b"".join(offsets), np.uint32), out=bounds[:-1])
        if len(bad := np.flatnonzero(bounds[1:] - bounds[:-1] < LIST_BYTES_MIN)):
            raise _corrupt(self.gathered, self._batch_of(int(bad[0])), "offsets that do not ascend")
        texts = Texts(parts, bounds)
        return texts if self._chosen is None else texts.only(self._chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _Names:
    """How calls are named."""

    words: npt.NDArray[np.uint64]  # [rows, 2] of keys; [rows, 3], with a number, where some are of sessions
    given: npt.NDArray[np.bool_]  # [rows] whether the call has a name
    numbered: npt.NDArray[np.bool_] | None  # [rows] whether that is a number in a session; None: no row's is

    def only(self, rows: Ints) -> _Names:
        return _Names(self.words[rows], self.given[rows], None if self.numbered is None else self.numbered[rows])

    def array(self) -> pa.BinaryArray:
        """As Arrow's binaries of 16 and of 24 bytes; a call without a name has null."""
        valid = pa.py_buffer(np.packbits(self.given, bitorder="little"))
        if self.numbered is None:
            keys = pa.py_buffer(np.ascontiguousarray(self.words))
            fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(self.words), [valid, keys])
            return fixed.cast(TYPES["_key"])
        used = np.repeat(self.given[:, None], 3, axis=1)  # of the three words
        used[:, 2] &= self.numbered
        ends = np.zeros(len(self.words) + 1, dtype=np.int32)
        np.cumsum(8 * used.sum(axis=1), out=ends[1:])
        return pa.BinaryArray.from_buffers(
            TYPES["_key"], len(self.words), [valid, pa.py_buffer(ends), pa.py_buffer(self.words[used])]
        )


def _unpacked(record: Record) -> bytes:
    """Raises: BadBatch."""
    try:
        return decode_batch(record).text
    except BadRecord as bad:
        raise BadBatch(record) from bad


def _corrupt(gathered: _Gathered, number: int, what: str) -> Corrupt:
    path, offset = gathered.places[number]
    record = gathered.records[number]
    return Corrupt(
        f"batch with valid checksums: {what}", path=path, offset=offset, partition=record.partition, index=record.index
    )
