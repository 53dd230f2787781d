"""Writes the golden log of format version 1: every kind of record, and batches of every shape.

    python -m tests.golden.write_log FOLDER

Everything in it is fixed, so that a second run gives the same bytes: generations, identity, transaction ids. What is committed
of a released version is only ever added to.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.call_places import CallPlace
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_digest, encode_empty, encode_json, encode_record
from cmdlog.wal.ids import CLUSTER_GROUP, MULTI_PARTITION, make_txn_id
from cmdlog.wal.log import Log
from tests.wal.logkit import ListSource, generations
from tests.wal.sim.simfiles import SimFiles

IDENTITY: Final = Identity(bytes(range(16)), 1, bytes(range(8)))
DIRECTORY: Final = "/node"
SEGMENT_BYTES: Final = 32 << 10
MILLIS: Final = 1_700_000_000_000
TXN: Final = make_txn_id(millis=MILLIS, counter=3, partition=0)
CATALOG: Final = {"version": 1, "procedures": [{"name": "deposit", "parameters": ["account", "amount"]}]}
BATCHES: Final = 7

SHAPE: Final = {"partitions": 1, "slots": [[0, 4096, 0]], "key_policy": {}}
MEMBER: Final = {"node": 1, "incarnation": "0001020304050607", "peer": "127.0.0.1:7101", "client": "http://127.0.0.1:8101"}
PLACES: Final = {0: (1, 3), CLUSTER_GROUP: (1, 6)}
REPLACED: Final = ClusterMember(
    1, b"life-two", "127.0.0.1:7101", "http://127.0.0.1:8101", MemberStage.ADMITTED, PLACES, (bytes(range(8)),)
)
LEFT: Final = ClusterMember(
    2, b"life-one", "127.0.0.1:7102", "http://127.0.0.1:8102", MemberStage.REMOVED, forced=True, ended=PLACES
)
FAULTS: Final = FaultSet(1, (2,), 1, 1, 1, ((0, 3, 1), (CLUSTER_GROUP, 6, 1)), "silent for 30 s")

NAMED: Final = 2  # partition of the batches with names
ONE, TWO, ENDING = b"session-one-----", b"session-two-----", b"session-ending--"
KEY: Final = bytes(range(16))
Call = tuple[bytes, int, int] | bytes  # session, number, floor; or a key
NAMED_CALLS: Final[tuple[tuple[tuple[Call, ...], tuple[bytes, ...]], ...]] = (
    (((ONE, 1, 0), (ONE, 2, 0), (ONE, 3, 1)), ()),  # one session whose numbers count on
    (((ONE, 9, 3), (ONE, 4, 3)), ()),  # numbers in columns of 1, 2 and 8 bytes
    (((ONE, 70, 4), (ONE, 900, 4)), ()),
    (((ONE, 71, 4), (ONE, 1 << 40, 4)), ()),
    (((TWO, 5, 0), NO_KEY, (ONE, 72, 6), KEY), ()),  # several, beside a key and a call without a name
    ((NO_KEY, NO_KEY), (ENDING,)),  # one that ends
)
"""Calls and ended sessions of each batch."""

SENT: Final = 3  # partition of the batches whose callers sent something else than the parameters
SENT_CALLS: Final = (
    ((KEY, 0), (NO_KEY, 0)),  # as they were sent
    ((KEY, 0xFEDCBA9876543210), (NO_KEY, 0), ((ONE, 1, 0), 1)),
    (((ONE, 1, 0), 7),),
)
"""Name and hash of each call of each batch; 0: the parameters are what was sent."""

EVERYWHERE: Final = 4  # partition of the calls on all partitions
EVERYWHERE_TERM: Final = 3
EVERYWHERE_CALLS: Final = (
    (CallPlace(3, 1), CallPlace(3, 40), CallPlace(2, 7), CallPlace(9, 300), CallPlace(3, 1)),  # of five partitions
    tuple(CallPlace(EVERYWHERE_TERM, 2) for _ in range(5)),  # without any distances
)


def batch(index: int) -> bytes:
    """One batch of each shape in turn: plain, with keys, with a TxnId column, compressed."""
    first = TXN + (index << 21)
    shape = index % 4
    return encode_batch(
        partition=0,
        term=1,
        index=index,
        catalog=1,
        txn_ids=[first, first + 5120] if shape == 2 else range(first, first + 2048, 1024),
        procedures=[0, 0],
        params=[b"[%d,50]" % index, b'[2,"7.25"]'],
        keys=[NO_KEY, bytes(range(16))] if shape == 1 else None,
        compress=shape == 3,
    )


def records() -> list[bytes]:
    """One record of every kind but CHECKPOINT, which rotation writes."""
    made = [
        encode_json(RecordKind.CONFIGURATION, {"voters": [1]}, partition=CLUSTER_GROUP, term=1, index=1),
        encode_json(RecordKind.CATALOG, CATALOG, partition=CLUSTER_GROUP, term=1, index=2),
        encode_json(RecordKind.ENVIRONMENT, {"python": "3.11"}, partition=CLUSTER_GROUP, term=1, index=3),
        encode_json(RecordKind.HARD_STATE, {"vote": 1}, partition=0, term=1, index=0),
        encode_json(RecordKind.SCHEMA, {"statements": ["create table t (a)"]}, partition=0, term=1, index=1),
    ]
    for index in range(2, 2 + BATCHES):
        made.append(batch(index))
        made.append(encode_commit_mark(partition=0, term=1, commit=index, closed_txn=TXN + (index << 21)))
        made.append(encode_digest(partition=0, term=1, index=index, rows_digest=index, catalog=1, result_hashes=bytes(8)))
    last = 2 + BATCHES
    made.append(encode_json(RecordKind.SKIP, {"index": 5, "position": 1}, partition=0, term=1, index=last))
    mark = {"index": 6, "term": 1, "txn_id": str(TXN), "name": "s"}
    made.append(encode_json(RecordKind.SNAPSHOT_MARK, mark, partition=0, term=1, index=6))
    made.append(encode_record(RecordKind.TRUNCATION, b"", partition=1, term=1, index=4))
    return [
        *made,
        *of_clusters(last + 1),
        *map(named, range(1, 1 + len(NAMED_CALLS))),
        *map(sent, range(1, 1 + len(SENT_CALLS))),
        *everywhere(),
    ]


def of_clusters(index: int) -> list[bytes]:
    """Those that only the logs of a cluster have."""
    cluster = [
        (RecordKind.SHAPE, SHAPE), (RecordKind.MEMBER, MEMBER), (RecordKind.MEMBER, REPLACED.to_json()),
        (RecordKind.MEMBER, LEFT.to_json()), (RecordKind.FAULTS, FAULTS.to_json()),
    ]  # fmt: skip
    return [
        *(
            encode_json(kind, value, partition=CLUSTER_GROUP, term=1, index=at, compress=False)
            for at, (kind, value) in enumerate(cluster, 4)
        ),
        encode_empty(partition=0, term=2, index=index),
        encode_empty(partition=0, term=2, index=index + 1, closed_txn=TXN + (99 << 21)),
    ]


def packed(name: Call) -> bytes:
    """As the encoder takes it."""
    return name if isinstance(name, bytes) else struct.pack("<16sQQ", *name)


def shaped(partition: int, index: int, names: list[Call], texts: list[bytes], ended: tuple[bytes, ...] = ()) -> bytes:
    """A batch with names; every other one has a column of TxnIds, every third one is compressed."""
    first, count = make_txn_id(millis=MILLIS, counter=3, partition=partition) + (index << 21), len(names)
    return encode_batch(
        partition=partition, term=1, index=index, catalog=1, procedures=[0] * count, ended=ended,
        txn_ids=[first + 5120 * at for at in range(count)] if index % 2 else range(first, first + 1024 * count, 1024),
        params=texts, keys=[packed(name) for name in names], compress=index % 3 == 0,
    )  # fmt: skip


def named(index: int) -> bytes:
    """The batch of `NAMED_CALLS` of this index, from 1."""
    calls, ended = NAMED_CALLS[index - 1]
    return shaped(NAMED, index, list(calls), [b"[%d,%d]" % (index, at) for at in range(len(calls))], ended)


def sent(index: int) -> bytes:
    """The batch of `SENT_CALLS` of this index, from 1."""
    calls = SENT_CALLS[index - 1]
    texts = [b"[%d,%d]" % (index, at) + (b"%016x" % of if of else b"") for at, (_, of) in enumerate(calls)]
    return shaped(SENT, index, [name for name, _ in calls], texts)


def everywhere() -> list[bytes]:
    """The calls on all partitions, and a skip of the second; the second is compressed."""
    made = []
    for index, places in enumerate(EVERYWHERE_CALLS, 1):
        txn_id = make_txn_id(millis=MILLIS + index, counter=0, partition=MULTI_PARTITION)
        made.append(
            encode_batch(
                partition=EVERYWHERE, term=EVERYWHERE_TERM, index=index, catalog=1, procedures=[0],
                txn_ids=range(txn_id, txn_id + 1024, 1024), params=[b"[%d]" % index], keys=[KEY] if index == 1 else None,
                places=places, compress=index == 2,
            )
        )  # fmt: skip
    skip = skip_value(2, 0, "hung", [place.index for place in EVERYWHERE_CALLS[1]])
    return [*made, encode_json(RecordKind.SKIP, skip, partition=EVERYWHERE, term=EVERYWHERE_TERM, index=3)]


class Script(ListSource):
    """Gives three records per block."""

    def __init__(self, waiting: list[bytes]) -> None:
        super().__init__()
        self.left = waiting

    def take_records(self, bytes_max: int) -> list[bytes]:
        block, self.left = self.left[:3], self.left[3:]
        self.taken.append([])
        self.unwritten.append([])
        return block


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    waiting = records()
    files = SimFiles()
    Log.create(
        files, DIRECTORY, IDENTITY, segment_bytes=SEGMENT_BYTES, segments=8, reserve_bytes=4096,
        initial=waiting[:4], generation=generations(0x1111),
    )  # fmt: skip
    log = Log.open(files, DIRECTORY, generation=generations(0x2222))
    source = Script(waiting[4:])
    log.start(source, threads=0)
    while source.left:
        log.run_turn()
    log.close()
    names = [f"log/{name}" for name in files.listdir(f"{DIRECTORY}/log") if not name.startswith("free-")]
    return {name: files.read_file(f"{DIRECTORY}/{name}") for name in ("instance.json", *names)}


def save(content: dict[str, bytes], folder: Path) -> None:
    """Writes the files below the folder."""
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    save(write(), Path(sys.argv[1]))
