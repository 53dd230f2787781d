"""Node directories whose log holds millions of transfers with the digests of a live run, written without running them all.

One rule: what is written can be replayed, digests compared, as if a node had executed it. Each partition's load is a period:
batches of transfers, and the same ones the other way round. Behind it the state is what it was before, so results and digests
repeat from period to period: they are taken from one that the engine has really run. The state never grows.

Several directories are the replicas of one cluster: the same entries, cut into blocks of different sizes.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from bench._feed import Feed
from cmdlog.wal.directory.instance import Identity, load_instance
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, decode_record, encode_commit_mark, encode_digest, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITION_BITS, make_txn_id
from cmdlog.wal.log import Log
from procedures.code.bundle import capture_bundle
from procedures.code.procedure_versions import catalog_value
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.samples import bank
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute
from replay.state.trust import state_path
from snapshot.capture.image import ImageCapture
from snapshot.capture.seal import seal
from snapshot.catalog import free_path, temporary_path
from snapshot.manifest import IMAGE_NAME

PARTITIONS = 4
CUSTOMERS = 5_000
BATCH_CALLS = 512
PERIOD_BATCHES = 32
FIRST_BATCH = 4  # index of the first batch of transfers: configuration, schema and the accounts stand before it
BLOCK_RECORDS = 8
MARK_EVERY = 16  # batches of a partition
SEGMENT_BYTES = 16 << 20  # as a node makes them by default
FIRST_MILLIS = 1_700_000_000_000
TICK = 1 << PARTITION_BITS
TARGET = "procedures.samples.bank:db"


@dataclass(frozen=True, slots=True)
class Did:
    """A batch, and what it does."""

    params: list[bytes]
    rows_digest: int
    result_hashes: bytes


@dataclass(frozen=True, slots=True)
class Period:
    """One partition's load: what comes once, and what comes again and again."""

    opening: Did
    batches: Sequence[Did]


def write_nodes(directories: Sequence[Path], seed: int, calls: int) -> None:
    """Stopped nodes with so many transfers, in whole batches of all partitions; no sync: nobody cuts the power here."""
    names = [procedure.name for procedure in bank.db.procedure_list]
    catalog = catalog_value(bank.db, capture_bundle(bank.db, TARGET), 1, None, partitions=None)
    periods = _periods(seed)
    cluster_id = Identity.fresh().cluster_id
    voters = {"voters": [number + 1 for number in range(len(directories))], "learners": [], "epoch": 1}
    cluster = voters | {"partitions": PARTITIONS, "key_policy": asdict(KeyPolicy())}
    initial = [encode_json(RecordKind.CONFIGURATION, cluster, partition=CLUSTER_GROUP, term=1, index=1)]
    initial += [encode_json(RecordKind.CONFIGURATION, voters, partition=p, term=1, index=1) for p in range(PARTITIONS)]
    initial.append(encode_json(RecordKind.CATALOG, catalog, partition=CLUSTER_GROUP, term=1, index=2))
    block_bytes = sum(len(text) + 8 for text in periods[0].batches[0].params) * (calls // BATCH_CALLS + 8)
    segments = max(4, block_bytes * 3 // 2 // SEGMENT_BYTES + 4)
    with ExitStack() as stack:
        writers = []
        for number, directory in enumerate(directories):
            identity = Identity(cluster_id, number + 1, os.urandom(8))
            writers.append(stack.enter_context(_Writer(directory, identity, segments, initial, BLOCK_RECORDS + number)))
        numbers = {name: names.index(name) for name in ("open_accounts", "transfer")}
        for record in _records(periods, numbers, calls):
            for writer in writers:
                writer.put(record)


def batches_of(calls: int) -> int:
    """Batches of each partition that so many calls take."""
    return -(-calls // (BATCH_CALLS * PARTITIONS))


def put_snapshots(directory: Path, calls: int) -> None:
    """Snapshots of all partitions as they were behind the first so many calls."""
    files = RealFiles()
    identity = load_instance(files, str(directory)).identity
    planned = make_plan(files, str(directory), PAST, until=moment_behind(calls))
    catalogs = {str(version): catalog.value for version, catalog in planned.scan.catalogs.items()}
    with tempfile.TemporaryDirectory(prefix="image-", dir=directory.parent) as scratch:
        Path(scratch, "state").mkdir()
        execute(planned, Target(files, scratch), workers=0)
        for partition in range(PARTITIONS):
            state = PartitionState.open(state_path(scratch, partition), partition=partition)
            temporary = temporary_path(str(directory), partition)
            Path(temporary).mkdir(parents=True)
            capture = ImageCapture(state, os.path.join(temporary, IMAGE_NAME))
            while not capture.step():
                pass
            report = {name: value for name, value in capture.report().items() if name != "path"}
            state.close()
            facts = {
                **report, "log_block": planned.plan.last_block, "epoch": 1, "configuration": None, "catalogs": catalogs,
                "environment": None, "key_policy": asdict(KeyPolicy()), "created": "2026-01-01T00:00:00Z",
                "cluster_id": identity.cluster_id.hex(), "node_id": identity.node_id, "incarnation": identity.incarnation.hex(),
            }  # fmt: skip
            seal(files, temporary, free_path(files, str(directory), partition=partition, index=report["index"]), facts)


def moment_behind(calls: int) -> int:
    """The highest TxnId of the batches with the first so many calls."""
    return make_txn_id(millis=_millis(batches_of(calls)), counter=0, partition=0) - 1


def _millis(batch: int) -> int:
    """When this batch of each partition was logged: one millisecond later for each."""
    return FIRST_MILLIS + 10 + batch


def _txn_ids(millis: int, partition: int, count: int) -> range:
    first = make_txn_id(millis=millis, counter=0, partition=partition)
    return range(first, first + count * TICK, TICK)


# -- what the batches do -------------------------------------------------------------------------------------------------


@functools.cache
def _periods(seed: int) -> list[Period]:
    with tempfile.TemporaryDirectory(prefix="cmdlog-bench-") as scratch:
        return [_run_period(Path(scratch), partition, seed + partition) for partition in range(PARTITIONS)]


def _run_period(folder: Path, partition: int, seed: int) -> Period:
    """Runs the period of a partition, whose only branch has its number."""
    catalogs = Catalogs()
    catalogs.add_live(1, bank.db)
    state = PartitionState.open(folder / str(partition), partition=partition)
    engine = PartitionEngine(state, catalogs, digest_rows=True, policy=KeyPolicy())
    engine.apply(decode_record(encode_json(RecordKind.CONFIGURATION, {}, partition=partition, term=1, index=1)))
    engine.apply(decode_record(_schema(partition)))
    names = [procedure.name for procedure in bank.db.procedure_list]
    index = itertools.count(3)

    def run(name: str, params: list[bytes]) -> Did:
        at = next(index)
        record = encode_batch(
            partition=partition, term=1, index=at, catalog=1, txn_ids=_txn_ids(FIRST_MILLIS + at, partition, len(params)),
            procedures=[names.index(name)] * len(params), params=params,
        )  # fmt: skip
        applied = engine.apply(decode_record(record))
        assert applied is not None
        if any(applied.statuses):
            raise RuntimeError("a call of the load has no result")
        return Did(params, applied.rows_digest, b"".join(found.to_bytes(4, "little") for found in applied.result_hashes))

    opening = run("open_accounts", [orjson.dumps([partition, 0, CUSTOMERS, 10_000, 1_000_000])])
    forth = list(_transfers(random.Random(seed)))
    back = [[(target, source, amount) for source, target, amount in batch] for batch in forth]
    batches = [
        run("transfer", [orjson.dumps([partition, source, target, amount]) for source, target, amount in batch])
        for batch in [*forth, *back]
    ]
    engine.close()
    return Period(opening, batches)


def _transfers(chance: random.Random) -> Iterator[list[tuple[int, int, int]]]:
    for _ in range(PERIOD_BATCHES):
        drawn = [(chance.randrange(CUSTOMERS), 1 + chance.randrange(CUSTOMERS - 1)) for _ in range(BATCH_CALLS)]
        yield [(source, (source + distance) % CUSTOMERS, chance.randrange(1, 10)) for source, distance in drawn]


# -- the log -------------------------------------------------------------------------------------------------------------


def _schema(partition: int) -> bytes:
    value = {"statements": bank.db.schema_statements(), "txn_id": _txn_ids(FIRST_MILLIS + 1, partition, 1)[0]}
    return encode_json(RecordKind.SCHEMA, value, partition=partition, term=1, index=2)


def _records(periods: Sequence[Period], numbers: dict[str, int], calls: int) -> Iterator[bytes]:
    """Batches of all partitions in turn, the digest of each, and a mark now and then."""
    for partition, period in enumerate(periods):
        yield _schema(partition)
        yield from _batch(partition, 3, FIRST_MILLIS + 2, numbers["open_accounts"], period.opening)
    last = batches_of(calls) - 1
    for batch in range(last + 1):
        for partition, period in enumerate(periods):
            did = period.batches[batch % len(period.batches)]
            yield from _batch(partition, FIRST_BATCH + batch, _millis(batch), numbers["transfer"], did)
            if batch % MARK_EVERY == 0 or batch == last:
                closed = make_txn_id(millis=_millis(batch + 1), counter=0, partition=0) - 1
                yield encode_commit_mark(partition=partition, term=1, commit=FIRST_BATCH + batch, closed_txn=closed)


def _batch(partition: int, index: int, millis: int, number: int, did: Did) -> Iterator[bytes]:
    count = len(did.params)
    yield encode_batch(
        partition=partition, term=1, index=index, catalog=1, txn_ids=_txn_ids(millis, partition, count),
        procedures=[number] * count, params=did.params,
    )  # fmt: skip
    yield encode_digest(
        partition=partition, term=1, index=index, rows_digest=did.rows_digest, catalog=1, result_hashes=did.result_hashes
    )


class _Writer:
    """Puts records into a log, so many in a block."""

    def __init__(self, directory: Path, identity: Identity, segments: int, initial: Sequence[bytes], records: int) -> None:
        files = RealFiles()
        Log.create(files, str(directory), identity, segment_bytes=SEGMENT_BYTES, segments=segments, initial=initial)
        self._log = Log.open(files, str(directory))
        self._records, self._block = records, list[bytes]()
        self._feed = Feed()

    def __enter__(self) -> _Writer:
        self._log.start(self._feed, threads=1, seal_after_s=60, sync="off")
        return self

    def __exit__(self, *_: object) -> None:
        if self._block:
            self._flush()
        self._log.close()

    def put(self, record: bytes) -> None:
        self._block.append(record)
        if len(self._block) >= self._records:
            self._flush()

    def _flush(self) -> None:
        self._feed.arrived.clear()
        self._feed.blocks.append(self._block)
        self._block = []
        if not self._log.run_turn():  # the segment is full: a thread of the log goes on to the next
            self._log.kick()
        if not self._feed.arrived.wait(60):
            raise RuntimeError("the log does not take the block")
