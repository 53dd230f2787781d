"""What later parts need from the log's format and from the state, as runnable measurements.

Snapshots: a stepwise online backup on the site's own connection, under load. Analytics: batches to Arrow columns. Replication: a
recycled ring whose checkpoints carry an idle partition. Cluster replay: several streams merged by transaction id.

Run: `python bench/format.py [--quick] [--state-mb N] [--only NAME]`. What the figures mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from sortedcontainers import SortedList

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import Bar, Bench, in_turns, make_parser, paired, percentile, work_directory
from bench._nodes import TARGET
from bench.engine import BRANCHES, CUSTOMERS, EngineLane, encode_calls
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, padded
from cmdlog.wal.format.record import RecordKind, decode_record, encode_commit_mark, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT, PARTITION_BITS, Lsn, make_txn_id
from cmdlog.wal.log import Log
from procedures.code.bundle import capture_bundle
from procedures.samples import bank
from snapshot.capture.image import ImageCapture

TICK: Final = 1 << PARTITION_BITS
FILES: Final = RealFiles()


def main() -> None:
    parser = make_parser("format", "Prototypes of what later parts need from the format.")
    parser.add_argument("--state-mb", type=int, default=100, help="size of the state that is copied under load")
    parser.add_argument("--only", choices=sorted(MEASUREMENTS), help="one measurement alone")
    options = parser.parse_args()
    if options.quick:
        options.state_mb = min(options.state_mb, 20)
    bench = Bench("format", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        for name, measure in MEASUREMENTS.items():
            if options.only in (None, name):
                (folder / name).mkdir()
                measure(bench, folder / name, options)
    bench.write()


# -- snapshots: a copy of the state under load ---------------------------------------------------------------------------


def measure_backup(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """Batches of 64 transfers all over the state, before and while it is copied a step at a time between them."""
    lane = EngineLane(folder / "state.sqlite", digest_rows=True)
    rows = _grow(lane, options.state_mb << 20)
    bench.section(f"Stepwise online backup under load: state of {options.state_mb} MB, {rows:,} rows, batches of 64 transfers")
    load = _Everywhere(options.seed, rows)
    for _ in range(50):
        lane.run(load.calls(64))
    rounds = 1 if options.quick else 3
    quotients, pauses, copies = [], [], []
    for number in range(rounds):
        before = _batches_per_second(lane, load, seconds=1.0 if options.quick else 3.0)
        during, steps, seconds = _batches_during_copy(lane, load, folder / f"copy-{number}.sqlite")
        quotients.append(during / before)
        pauses += steps
        copies.append(options.state_mb / seconds)
    bench.times("one step between two batches", pauses)
    bench.ratio("longest step, ms", max(pauses) * 1e3, Bar(25, 10, at_most=True))
    bench.value("copied", statistics.median(copies), "MB/s")
    bench.ratio("throughput during the copy / before", statistics.median(quotients), Bar(0.75, 0.9))


class _Everywhere:
    """Transfers between customers that are spread over the whole state."""

    def __init__(self, seed: int, rows: int) -> None:
        self._chance, self._rows = random.Random(seed), rows

    def calls(self, count: int) -> list[bank.Call]:
        chance, rows = self._chance, self._rows
        pairs = ((chance.randrange(rows), chance.randrange(rows)) for _ in range(count))
        return [("transfer", {"branch": 1000, "source": s, "target": t, "amount": 1}) for s, t in pairs if s != t]


def _grow(lane: EngineLane, size: int) -> int:
    """Adds customers to branch 1000 until the file has that size; how many."""
    connection = lane.engine.state.connection
    rows, step = 0, 100_000
    fill = """INSERT INTO accounts SELECT 1000, value, 1000, 1000000 FROM (
        WITH RECURSIVE more(value) AS (SELECT ? UNION ALL SELECT value + 1 FROM more LIMIT ?) SELECT value FROM more)"""
    while int(connection.pragma("page_count")) * 4096 < size:
        connection.execute(fill, (rows, step))
        rows += step
    return rows


def _batches_per_second(lane: EngineLane, load: _Everywhere, *, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        lane.run(load.calls(64))
        count += 1
    return count / (time.perf_counter() - began)


def _batches_during_copy(lane: EngineLane, load: _Everywhere, path: Path) -> tuple[float, list[float], float]:
    """Batches per second, seconds of each step, seconds of the whole copy."""
    capture = ImageCapture(lane.engine.state, str(path))
    steps: list[float] = []
    began, count, done = time.perf_counter(), 0, False
    while not done:
        lane.run(load.calls(64))
        count += 1
        step_began = time.perf_counter()
        done = capture.step()
        steps.append(time.perf_counter() - step_began)
    elapsed = time.perf_counter() - began
    report = capture.report()
    if "error" in report:
        raise RuntimeError(report["error"])
    path.unlink()
    return count / elapsed, steps, elapsed


# -- analytics: batches to Arrow -----------------------------------------------------------------------------------------


def measure_arrow(bench: Bench, _folder: Path, options: argparse.Namespace) -> None:
    """The columns of batches as Arrow arrays, from the bytes on disk, checksums included."""
    batches, size = (40, 1024) if options.quick else (400, 1024)
    raws = [item for item, _ in zip(_stream(options.seed, partition=0, size=size, keyed=False), range(batches), strict=False)]
    bench.section(f"Columns of {batches} batches of {size} calls to Arrow: txn_id, ts, procedure, params as text")
    names = pa.array([procedure.name for procedure in bank.db.procedure_list])
    rows = batches * size

    def columns(_round: int) -> float:
        began = time.perf_counter()
        table = pa.Table.from_batches([to_arrow(decode_batch(decode_record(raw)), names) for raw in raws])
        assert table.num_rows == rows
        return rows / (time.perf_counter() - began)

    def loop(_round: int) -> float:
        began = time.perf_counter()
        table = pa.Table.from_batches([_one_by_one(decode_batch(decode_record(raw)), names) for raw in raws])
        assert table.num_rows == rows
        return rows / (time.perf_counter() - began)

    same = decode_batch(decode_record(raws[0]))
    assert to_arrow(same, names).to_pylist() == _one_by_one(same, names).to_pylist()
    found = in_turns({"columns": columns, "loop": loop}, 3 if options.quick else 10)
    bench.rates("from the columns and offsets", found["columns"], "rows/s ")
    bench.rates("a loop over the records", found["loop"], "rows/s ")
    bench.ratio("columns / loop", paired(found["columns"], found["loop"]))


def to_arrow(batch: Batch, names: pa.Array) -> pa.RecordBatch:
    """One record batch; no call is parsed, the text is copied once to drop the commas between the lists."""
    count = batch.count
    if isinstance(batch.txn_ids, range):
        txn = batch.first_txn + np.arange(count, dtype=np.int64) * TICK
    else:
        txn = np.array(batch.txn_ids, dtype=np.int64)
    offsets = pa.py_buffer(batch.offsets)
    texts = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(batch.text)])
    params = pc.binary_slice(texts, 0, -1).view(pa.string())  # each but its comma, or the last one's closing bracket
    codes = pa.array(np.frombuffer(batch.procedures, dtype=np.uint16).astype(np.int16))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(txn),
            pa.array(txn >> MILLIS_SHIFT).view(pa.timestamp("ms")),
            pa.DictionaryArray.from_arrays(codes, names),
            params,
        ],
        names=["txn_id", "ts", "procedure", "params"],
    )


def _one_by_one(batch: Batch, names: pa.Array) -> pa.RecordBatch:
    known = names.to_pylist()
    rows: list[tuple[int, int, str, str]] = []
    for at, txn in enumerate(batch.txn_ids):
        text = batch.text[batch.offsets[at] : batch.offsets[at + 1] - 1].decode()
        rows.append((txn, txn >> MILLIS_SHIFT, known[batch.procedures[at]], text))
    txns, times, procedures, texts = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(txns), pa.array(times, pa.timestamp("ms")), pa.array(procedures).dictionary_encode(), pa.array(texts)],
        names=["txn_id", "ts", "procedure", "params"],
    )


# -- replication: a recycled ring under an idle partition ----------------------------------------------------------------


class _Feed:
    """A source that gives one batch of partition 0 when it is allowed to; before all others, the idle partitions' words."""

    def __init__(self, records: Sequence[bytes], first: Sequence[bytes]) -> None:
        self._records = itertools.cycle(records)
        self._first = list(first)
        self.durable_count = threading.Semaphore(0)
        self.error: WalError | None = None
        self.allowed = 0  # blocks

    @property
    def pending_bytes(self) -> int:
        return self.allowed

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        if not self.allowed:
            return []
        self.allowed = 0
        first, self._first = self._first, []
        return first or [next(self._records)]

    def written(self, block: int) -> None: ...

    def durable(self, block: int) -> None:
        self.durable_count.release()

    def failed(self, error: WalError) -> None:
        self.error = error
        self.durable_count.release()


def measure_ring(bench: Bench, folder: Path, options: argparse.Namespace) -> None:
    """A small ring goes round many times; partition 1 said its vote, commit and schema once, at the very beginning."""
    groups = 4
    bench.section(f"A recycled ring with checkpoints; {groups} groups, all but one idle")
    blocks = 2000 if options.quick else 20_000
    for segment_kib in (256, 1024, 16 << 10):
        rate, rotations, share, survived = _go_round(folder / f"{segment_kib}", segment_kib << 10, groups, blocks)
        bench.value(f"segments of {segment_kib:,} KiB: rotations", rotations, "")
        bench.value(f"segments of {segment_kib:,} KiB: blocks per second, inline", rate, "blocks/s")
        bench.value(f"segments of {segment_kib:,} KiB: checkpoints, share of the bytes", share * 100, "%")
        if not survived:
            raise RuntimeError("the idle partition's vote, commit, schema or catalog did not survive the recycling")
        bench.note("the idle partition's vote, commit, schema and the cluster's catalog are all there after reopening")


def _go_round(folder: Path, segment_bytes: int, groups: int, blocks: int) -> tuple[float, int, float, bool]:
    """(blocks per second, rotations, share of bytes in segment heads, whether the idle partitions' words survived)."""
    said = _words(groups)
    Log.create(FILES, str(folder), Identity.fresh(), segment_bytes=segment_bytes, segments=6, reserve_bytes=16 << 10)
    log = Log.open(FILES, str(folder))
    records = [
        encode_calls(list(bank.workload(number, calls=64)), index=number + 2, first=make_txn_id(
            millis=1_700_000_000_000 + number, counter=0, partition=0), keyed=False)
        for number in range(64)
    ]  # fmt: skip
    feed = _Feed(records, said)
    log.start(feed)
    began = time.perf_counter()
    for number in range(blocks):
        feed.allowed = 1
        if not log.run_turn():  # a rotation is left to the log's own threads
            log.kick()
        feed.durable_count.acquire()
        if feed.error is not None:
            raise feed.error
        if number % 4 == 0:
            log.anchors.set("bench", Lsn(log.durable_block, 0))
    elapsed = time.perf_counter() - began
    log.close()
    newest = max((folder / "log").glob("seg-*.wal"))
    sequence, head = int(newest.stem.removeprefix("seg-")), newest.read_bytes()[SECTOR_BYTES : 2 * SECTOR_BYTES]
    body_bytes = HEADER.unpack_from(head)[[field.name for field in HEADER.fields].index("body_bytes")]
    heads = SECTOR_BYTES + padded(HEADER.bytes + body_bytes)
    again = Log.open(FILES, str(folder))
    survived = _remembers(again, groups)
    again.close()
    return blocks / elapsed, sequence - 1, heads / segment_bytes, survived


def _words(groups: int) -> list[bytes]:
    """What idle partitions and the cluster group say once."""
    bundle = capture_bundle(bank.db, TARGET)
    catalog = {"version": 1, "hash": bundle.hash, "bundle": bundle.to_bytes().decode()}
    configuration = {"voters": [1, 2, 3], "learners": [], "epoch": 1}
    schema = {"statements": ["CREATE TABLE t (id)"], "txn_id": 5}
    said = [encode_json(RecordKind.CATALOG, catalog, partition=CLUSTER_GROUP, term=3, index=1)]
    for partition in range(1, groups):
        said += [
            encode_json(RecordKind.HARD_STATE, {"vote": 3}, partition=partition, term=7, index=0),
            encode_json(RecordKind.CONFIGURATION, configuration, partition=partition, term=7, index=1),
            encode_json(RecordKind.SCHEMA, schema, partition=partition, term=7, index=2),
            encode_commit_mark(partition=partition, term=7, commit=2, closed_txn=9),
        ]
    return said


def _remembers(log: Log, groups: int) -> bool:
    found = log.recovered.groups.by_partition
    idle = [found[partition] for partition in range(1, groups)]
    return 1 in found[CLUSTER_GROUP].catalogs and all(
        (group.term, group.vote, group.commit, group.last_index) == (7, 3, 2, 2) and group.schema is not None for group in idle
    )


# -- cluster replay: streams merged by transaction id --------------------------------------------------------------------


def measure_merge(bench: Bench, _folder: Path, options: argparse.Namespace) -> None:
    """Four partitions' batches in one order, each call with its procedure and parsed parameters."""
    streams, size, batches = 4, 256, 40 if options.quick else 400
    raws = [
        list(itertools.islice(_stream(options.seed + partition, partition=partition, size=size, keyed=False), batches))
        for partition in range(streams)
    ]
    calls = streams * size * batches
    bench.section(f"Merge of {streams} streams whose batches of {size} overlap: {calls:,} invocations, decoded and parsed")

    def timed(merge: Callable[[Sequence[Sequence[bytes]]], Iterator[Sequence[int]]]) -> Callable[[int], float]:
        def run(_round: int) -> float:
            began, count, last = time.perf_counter(), 0, 0
            for txn_ids in merge(raws):
                count += len(txn_ids)
                assert txn_ids[0] > last
                last = txn_ids[-1]
            assert count == calls
            return calls / (time.perf_counter() - began)

        return run

    found = in_turns({"bulk": timed(_merge_bulk), "heads": timed(_merge_heads)}, 2 if options.quick else 6)
    bulk = bench.rates("window of batches, one stable sort of ids (numpy)", found["bulk"], "calls/s")
    bench.rates("sorted heads, call by call (sortedcontainers)", found["heads"], "calls/s")
    bench.ratio("million invocations/s, best", max(bulk, statistics.median(found["heads"])) / 1e6, Bar(0.5, 2.0))
    bench.value("slowest round of the window merge", percentile(found["bulk"], 0.0), "calls/s")


def _ids(batch: Batch) -> np.ndarray[Any, np.dtype[np.int64]]:
    if isinstance(batch.txn_ids, range):
        return batch.first_txn + np.arange(batch.count, dtype=np.int64) * TICK
    return np.array(batch.txn_ids, dtype=np.int64)


def _merge_bulk(raws: Sequence[Sequence[bytes]]) -> Iterator[Sequence[int]]:
    """Takes a batch of every stream that could come next, sorts what no later batch can precede, keeps the rest.

    What may be emitted ends at the smallest last id among the streams' newest batches: beyond it a stream may still hold less.
    """
    cursors = [iter(of) for of in raws]
    lasts = [-1] * len(raws)  # last id taken from each stream; exhausted streams hold nobody back
    ids = np.empty(0, dtype=np.int64)
    params: list[Any] = []
    procedures = np.empty(0, dtype=np.uint16)
    end = np.iinfo(np.int64).max
    while True:
        parts, numbers = [ids], [procedures]
        behind = min(lasts)
        for stream, cursor in enumerate(cursors):
            if lasts[stream] > behind + (1 << MILLIS_SHIFT + 4) or lasts[stream] == end:
                continue
            raw = next(cursor, None)
            if raw is None:
                lasts[stream] = end
                continue
            batch = decode_batch(decode_record(raw))
            parts.append(_ids(batch))
            numbers.append(np.frombuffer(batch.procedures, dtype=np.uint16))
            params += batch.params()
            lasts[stream] = batch.last_txn
        ids, procedures = np.concatenate(parts), np.concatenate(numbers)
        if not len(ids):
            return
        order = np.argsort(ids, kind="stable")
        ids, procedures, params = ids[order], procedures[order], [params[at] for at in order.tolist()]
        cut = int(np.searchsorted(ids, min(lasts), side="right"))
        if cut:
            _consume(procedures[:cut].tolist(), params[:cut])
            yield ids[:cut].tolist()
        ids, procedures, params = ids[cut:], procedures[cut:], params[cut:]


def _merge_heads(raws: Sequence[Sequence[bytes]]) -> Iterator[Sequence[int]]:
    """The stream with the lowest head gives its calls up to the next stream's head."""
    cursors = [iter(of) for of in raws]
    heads: Any = SortedList()
    held: list[tuple[list[int], list[int], list[Any]]] = [([], [], [])] * len(raws)

    def refill(stream: int) -> None:
        raw = next(cursors[stream], None)
        if raw is not None:
            batch = decode_batch(decode_record(raw))
            held[stream] = (list(batch.txn_ids), list(batch.procedures), batch.params())
            heads.add((held[stream][0][0], stream, 0))

    for stream in range(len(raws)):
        refill(stream)
    while heads:
        _, stream, at = heads.pop(0)
        ids, procedures, params = held[stream]
        limit = heads[0][0] if heads else ids[-1] + 1
        upto = at
        while upto < len(ids) and ids[upto] < limit:
            upto += 1
        _consume(procedures[at:upto], params[at:upto])
        yield ids[at:upto]
        if upto < len(ids):
            heads.add((ids[upto], stream, upto))
        else:
            refill(stream)


def _consume(procedures: Sequence[int], params: Sequence[Any]) -> None:
    """Where an engine would take over."""
    assert len(procedures) == len(params)


def _stream(seed: int, *, partition: int, size: int, keyed: bool) -> Iterator[bytes]:
    """Batch records of one partition without end, one a millisecond: ids of several streams alternate call by call, the worst."""
    for index in itertools.count(2):
        millis = 1_700_000_000_000 + index
        calls = list(bank.workload(seed + index, calls=size, branches=BRANCHES, customers=CUSTOMERS))
        yield encode_calls(calls, index=index, first=make_txn_id(millis=millis, counter=0, partition=partition), keyed=keyed)


MEASUREMENTS: Final[dict[str, Callable[[Bench, Path, argparse.Namespace], None]]] = {
    "backup": measure_backup,
    "arrow": measure_arrow,
    "ring": measure_ring,
    "merge": measure_merge,
}

if __name__ == "__main__":
    main()
