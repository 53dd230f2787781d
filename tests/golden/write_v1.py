"""Writes the golden log of format version 1. Run once per format version; what is committed is only ever added to.

    python -m tests.golden.write_v1 FOLDER

Everything in it is fixed, so that a second run gives the same bytes: generations, identity, transaction ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_digest, encode_json, encode_record
from cmdlog.wal.ids import CLUSTER_GROUP, make_txn_id
from cmdlog.wal.log import Log
from tests.wal.logkit import ListSource, generations
from tests.wal.sim.simfiles import SimFiles

IDENTITY = Identity(bytes(range(16)), 1, bytes(range(8)))
DIRECTORY = "/node"
SEGMENT_BYTES = 32 << 10
TXN = make_txn_id(millis=1_700_000_000_000, counter=3, partition=0)
CATALOG = {"version": 1, "procedures": [{"name": "deposit", "parameters": ["account", "amount"]}]}
BATCHES = 7


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
    return made


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


def write(log_records: list[bytes] | None = None) -> dict[str, bytes]:
    """File name -> content of the golden directory; of a log with these records, or those of version 1."""
    waiting = log_records or records()
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
