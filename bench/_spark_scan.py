"""The log as a Spark table beside Parquet files of the very same rows: CPU time of the whole process tree, and memory.

One rule: both sides are read by the same session in turns, into a sink that drops every row. The first reading of each is not
counted; the least of several is quoted, because whatever else runs on the machine only adds.

The log is written by the product's own log writer, without a node: nothing here executes a call.

Beside the log stands a source that gives out record batches of the same rows, which lie ready in a file: what is left then is
Spark's own share of any source in Python, and no source of ours can cost less.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench._common import Bar, Bench, in_turns, paired
from bench._feed import Feed
from bench._spark_jobs import tree_cpu_s, watched
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_digest, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, make_txn_id
from cmdlog.wal.log import Log
from procedures.idempotency.known_outcome import KeyPolicy
from replay.spark.base.options import parse_options
from replay.spark.reading.arrow_rows import read_task
from replay.spark.reading.read_plan import plan_read
from replay.spark.reading.read_task import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WARM_TURNS = 3  # Java compiles what it runs often
COLUMNS = "partition_id int, txn_id bigint, procedure string, ts timestamp, params string"
TWO = "txn_id bigint, procedure string"
PARTITIONS = 4
BATCH_CALLS = 512
BLOCK_RECORDS = 4
SEGMENT_BYTES = 64 << 20
FIRST_MILLIS = 1_700_000_000_000
TICK = 1 << 10
POOL = 64  # different batches of parameters, used over and over: making them would take longer than all that is measured


def section(bench: Bench, spark: SparkSession, folder: Path, *, calls: int, long_calls: int, turns: int) -> None:
    """All of it. `long_calls`: of the log that memory is looked at with, beside the other."""
    spark.dataSource.register(ReadySource)
    for name, kindred in (
        ("orders of some 150 bytes", orders(bench.seed)),
        ("transfers of some 50 bytes", transfers(bench.seed)),
    ):
        bench.section(f"Scan of {calls:,} {name}, CPU seconds of all processes")
        write_log(folder / "log", kindred, calls)
        _compare(bench, spark, folder, turns)
        _share(bench, str(folder / "log"), calls)
        shutil.rmtree(folder / "log")
    bench.section("Memory of the largest Python worker while all columns are read")
    peaks = []
    for count in (calls, long_calls):
        write_log(folder / "log", orders(bench.seed), count)
        with watched() as peak:
            _drop(spark.read.format("cmdlog").load(str(folder / "log")))
        peaks.append(bench.value(f"{count:,} orders", peak.worker / (1 << 20), "MiB"))
        shutil.rmtree(folder / "log")
    bench.value("more for the longer log", peaks[1] - peaks[0], "MiB")


def _compare(bench: Bench, spark: SparkSession, folder: Path, turns: int) -> None:
    log, files, ready = (str(folder / part) for part in ("log", "parquet", "ready"))
    spark.read.format("cmdlog").load(log).write.parquet(files)
    _make_ready(files, ready)
    lanes: dict[str, Callable[[], DataFrame]] = {
        "log": lambda: spark.read.format("cmdlog").load(log),
        "Parquet": lambda: spark.read.parquet(files),
        "log, two columns": lambda: spark.read.format("cmdlog").schema(TWO).load(log),
        "Parquet, two columns": lambda: spark.read.parquet(files).select("txn_id", "procedure"),
        "batches that lie ready": lambda: spark.read.format(ReadySource.name()).load(ready),
    }
    timed = {lane: partial(_scan_cpu_s, make) for lane, make in lanes.items()}
    in_turns(timed, WARM_TURNS)
    found = in_turns(timed, turns)
    for lane, seconds in found.items():
        bench.value(lane, min(seconds), "CPU s")
    bar = None if bench.quick else Bar(1.5, 1.25, at_most=True)  # of a short log Spark's own work is all that is seen
    bench.ratio("log / Parquet", paired(found["log"], found["Parquet"]), bar)
    bench.ratio("two columns: log / Parquet", paired(found["log, two columns"], found["Parquet, two columns"]))
    bench.ratio("batches that lie ready / Parquet", paired(found["batches that lie ready"], found["Parquet"]))
    bench.ratio("two columns / all of the log", paired(found["log, two columns"], found["log"]))
    shutil.rmtree(files)
    shutil.rmtree(ready)


def _share(bench: Bench, log: str, calls: int) -> None:
    """What planning and reading take of it, measured in this process."""
    options = parse_options({"path": log})
    tasks = plan_read(options).tasks
    columns = [column.split()[0] for column in COLUMNS.split(", ")]
    for name, of in (("all columns", columns), ("without params", columns[:-1])):
        seconds = [_own_cpu_s(partial(_read, tasks, of)) for _ in range(3)]
        bench.value(f"tasks alone, {name}", min(seconds) / calls * 1e9, "ns/row")
    bench.value("a plan, segments known", min(_own_cpu_s(partial(plan_read, options)) for _ in range(3)), "CPU s")


def _read(tasks: Sequence[Task], columns: Sequence[str]) -> int:
    return sum(batch.num_rows for task in tasks for batch in read_task(task, columns))


def _own_cpu_s(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def _scan_cpu_s(make: Callable[[], DataFrame], _turn: int) -> float:
    before = tree_cpu_s()
    _drop(make())
    return tree_cpu_s() - before


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# -- what Spark itself takes ---------------------------------------------------------------------------------------------


def _make_ready(files: str, ready: str) -> None:
    """The rows of each Parquet file as a file of record batches like those that a task gives out."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    Path(ready).mkdir()
    for number, file in enumerate(sorted(Path(files).glob("*.parquet"))):
        table = pq.read_table(file)
        at = table.schema.get_field_index("ts")
        table = table.set_column(at, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
        with pa.OSFile(f"{ready}/{number}", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10_000)


class ReadySource(DataSource):
    """Gives out what `_make_ready` wrote."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options["path"])


class ReadyReader(DataSourceReader):
    """One file a task."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self._path).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as source:
            opened = pa.ipc.open_file(source)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)


# -- the log -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kindred:
    """Procedures with the names of their parameters, and lists of values for them."""

    names: tuple[tuple[str, tuple[str, ...]], ...]
    pool: Sequence[tuple[list[int], list[bytes]]]  # (procedure numbers, parameter lists) of a batch


def transfers(seed: int) -> Kindred:
    """One procedure of four small numbers."""
    chance = random.Random(seed)
    draw = chance.randrange
    lists = [[orjson.dumps([draw(4), draw(5000), draw(5000), draw(1, 10)]) for _ in range(BATCH_CALLS)] for _ in range(POOL)]
    names = ("branch", "source", "target", "amount")
    return Kindred((("transfer", names),), [([0] * BATCH_CALLS, of) for of in lists])


def orders(seed: int) -> Kindred:
    """Three procedures of a shop, some 160 bytes as an object; a comma stands in one text of eight."""
    chance = random.Random(seed)
    draw = chance.randrange
    names = (
        ("cancel_order", ("customer", "order", "reason", "refund", "agent", "ticket")),
        ("change_address", ("customer", "street", "city", "postal_code", "country")),
        ("place_order", ("customer", "item", "quantity", "unit_price", "currency", "note", "express")),
    )

    def text(words: int) -> str:
        said = " ".join(chance.choice(("deliver", "parcel", "second", "floor", "ring", "twice", "garden")) for _ in range(words))
        return said.replace(" ", ", ", 1) if draw(8) == 0 else said

    def values(number: int) -> list[object]:
        customer = draw(100_000, 1_000_000)
        if number == 0:
            return [
                customer,
                f"order-{draw(10**9):010d}",
                text(6),
                draw(100, 99_999) / 100,
                f"agent-{draw(900):03d}",
                draw(10**8),
            ]
        if number == 1:
            return [customer, f"{text(5)} {draw(200)}", f"city of {text(3)}", f"{draw(10_000, 99_999)}", "DE"]
        return [customer, f"item-{draw(10**6):06d}", draw(1, 20), draw(100, 99_999) / 100, "EUR", text(5), draw(2) == 0]

    pool = []
    for _ in range(POOL):
        numbers = chance.choices((0, 1, 2), (1, 1, 4), k=BATCH_CALLS)
        pool.append((numbers, [orjson.dumps(values(number)) for number in numbers]))
    return Kindred(names, pool)


def write_log(directory: Path, kindred: Kindred, calls: int) -> None:
    """A node's log with so many calls, without a sync: nobody cuts the power here."""
    size = sum(len(text) + 32 for text in kindred.pool[0][1]) * (calls // BATCH_CALLS + 1)
    files, voters = RealFiles(), {"voters": [1], "learners": [], "epoch": 1}
    cluster = voters | {"partitions": PARTITIONS, "key_policy": asdict(KeyPolicy())}
    stated = [{"name": name, "parameters": parameters} for name, parameters in kindred.names]
    catalog = {"version": 1, "hash": "0" * 64, "procedures": stated, "bundle": "{}"}
    initial = [encode_json(RecordKind.CONFIGURATION, cluster, partition=CLUSTER_GROUP, term=1, index=1)]
    initial += [encode_json(RecordKind.CONFIGURATION, voters, partition=p, term=1, index=1) for p in range(PARTITIONS)]
    initial.append(encode_json(RecordKind.CATALOG, catalog, partition=CLUSTER_GROUP, term=1, index=2))
    segments = max(4, size * 5 // 4 // SEGMENT_BYTES + 3)
    Log.create(files, str(directory), Identity.fresh(), segment_bytes=SEGMENT_BYTES, segments=segments, initial=initial)
    log, feed = Log.open(files, str(directory)), Feed()
    log.start(feed, threads=1, seal_after_s=60, sync="off")
    records = _records(kindred, calls)
    while block := list(itertools.islice(records, BLOCK_RECORDS)):
        feed.arrived.clear()
        feed.blocks.append(block)
        if not log.run_turn():  # the segment is full: a thread of the log goes on to the next
            log.kick()
        if not feed.arrived.wait(60):
            raise RuntimeError("the log does not take the block")
    log.close()


def _records(kindred: Kindred, calls: int) -> Iterator[bytes]:
    """Batches of all partitions in turn, the digest of each, and a mark now and then."""
    hashes, index = bytes(4 * BATCH_CALLS), 1
    for number in range(-(-calls // BATCH_CALLS)):
        partition, index = number % PARTITIONS, number // PARTITIONS + 2
        count = min(BATCH_CALLS, calls - number * BATCH_CALLS)
        first = make_txn_id(millis=FIRST_MILLIS + number, counter=0, partition=partition)
        numbers, params = kindred.pool[number % len(kindred.pool)]
        ids = range(first, first + count * TICK, TICK)
        yield encode_batch(
            partition=partition, term=1, index=index, catalog=1, txn_ids=ids, procedures=numbers[:count], params=params[:count]
        )
        yield encode_digest(
            partition=partition, term=1, index=index, rows_digest=number, catalog=1, result_hashes=hashes[: 4 * count]
        )
        if index % 16 == 0:
            yield encode_commit_mark(partition=partition, term=1, commit=index - 1, closed_txn=first - 1)
    for partition in range(PARTITIONS):
        closed = make_txn_id(millis=FIRST_MILLIS + calls, counter=0, partition=0)
        yield encode_commit_mark(partition=partition, term=1, commit=index, closed_txn=closed)
