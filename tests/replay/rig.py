"""A node directory made by hand: log, engines and snapshots driven step by step, beside a plain model of what the states hold."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, decode_record, encode_commit_mark, encode_digest, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP, make_txn_id
from cmdlog.wal.log import Log
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.idempotency.known_outcome import KeyPolicy, key_fingerprint
from procedures.idempotency.session_calls import sent_name
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine
from replay.state.trust import Trust, state_path
from snapshot.capture.image import ImageCapture
from snapshot.capture.seal import seal
from snapshot.catalog import free_path, temporary_path
from snapshot.manifest import IMAGE_NAME
from snapshot.table_digest import TableDigest, open_image, table_digests
from tests.procedures.sites import uuid7
from tests.waiting import PATIENCE_S

APP = """
import os
import time
from sqlalchemy import Column, Integer, bindparam, insert, select, update
from procedures import Database

db = Database("ledger")
accounts = db.table(
    "accounts",
    Column("id", Integer, primary_key=True),
    Column("balance", Integer, nullable=False),
    partition_by="id",
)
OPEN = insert(accounts).values(id=bindparam("id_"), balance=0)
ADD = update(accounts).where(accounts.c.id == bindparam("id_")).values(balance=accounts.c.balance + bindparam("amount_"))
BALANCE = select(accounts.c.balance).where(accounts.c.id == bindparam("id_"))


@db.procedure(partition_by="account")
def begin(tx, account: int) -> int:
    tx.execute(OPEN, id_=account)
    return 0


@db.procedure(partition_by="account")
def clock(tx, account: int) -> int:
    return time.time_ns()


@db.procedure(partition_by="account")
def deposit(tx, account: int, amount: int) -> int:
    tx.execute(ADD, id_=account, amount_=amount * FACTOR)
    return tx.execute(BALANCE, id_=account).scalar()


@db.procedure(partition_by="account")
def drift(tx, account: int) -> int:
    tx.execute(ADD, id_=account, amount_=time.time_ns() % 1000003)
    return 0


@db.procedure(partition_by="account")
def mirror(tx, account: int, source: int) -> int:
    balance = tx.execute(BALANCE, id_=source).scalar()
    tx.execute(ADD, id_=account, amount_=balance)
    return balance


@db.procedure(partition_by="account")
def trap(tx, account: int) -> int:
    tx.execute(ADD, id_=account, amount_=FACTOR)
    what = os.environ.get("LEDGER_TRAP")
    while what == "hang":
        pass
    if what == "end":
        os._exit(3)
    if what == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if what == "break":
        raise KeyboardInterrupt
    if what == "fault":
        raise MemoryError("the test's own")
    return 0
"""
BEGIN, CLOCK, DEPOSIT, DRIFT, MIRROR, TRAP = range(6)  # numbers in the procedure list, by name
PROCEDURES = (("begin",), ("clock",), ("deposit", "amount"), ("drift",), ("mirror", "source"), ("trap",))
SCHEMA = ["CREATE TABLE accounts ( id INTEGER NOT NULL, balance INTEGER NOT NULL, PRIMARY KEY (id) ) STRICT"]
TRIPLE = 3  # the factor of forks' other code
ACCOUNTS = 3  # of each partition: ids 10 * partition + 0, 1, 2
FIRST_MILLIS = 1_700_000_000_000
SESSION_MS = 500  # of the rig's time, for which its client keeps a session


def make_bundle(factor: int = 1) -> Bundle:
    """The application whose deposits count `factor` times: another factor is changed code."""
    content: dict[str, Any] = {
        "target": "ledger:db",
        "modules": {"ledger": f"FACTOR = {factor}\n{APP}"},
        "packages": [],
        "dialect": 1,
        "sql": {},
        "procedures": [{"name": name, "parameters": ["account", *more]} for name, *more in PROCEDURES],
    }
    return Bundle(**content, hash=hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest())


OPENED: list[Log] = []
"""The logs of all rigs, for `close_logs`."""


def close_logs(after: int) -> None:
    """Closes those behind the first `after`: a log's thread would go on making files in a directory that is gone."""
    while len(OPENED) > after:
        with contextlib.suppress(WalError, OSError):  # what a test broke
            OPENED.pop().close()


class Feed:
    """A `Source` of what is put in."""

    def __init__(self) -> None:
        self.blocks: deque[list[bytes]] = deque()
        self.pending_bytes, self.waits, self.lax = 0, True, False
        self.durable_block = 0
        self.arrived = threading.Event()

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        return self.blocks.popleft() if self.blocks else ()

    def written(self, block: int) -> None:
        """Nothing to do."""

    def durable(self, block: int) -> None:
        self.durable_block = block
        self.arrived.set()

    def failed(self, error: WalError) -> None:
        raise error


class Rig:
    """One node. Every call is durable and executed when a method returns."""

    def __init__(
        self, folder: Path, *, partitions: int = 2, segment_bytes: int = 64 << 10, segments: int = 16, factor: int = 1
    ) -> None:
        self.files, self.directory, self.partitions = RealFiles(), str(folder / "node"), partitions
        self.identity = Identity.fresh()
        self.term, self.millis, self.version = 1, FIRST_MILLIS, 0
        self.catalogs, self.bundles = Catalogs(), dict[str, Any]()
        self.factor = factor
        self.policy = KeyPolicy()
        self.numbers = 1  # the next one of a client's call
        self.balances: dict[int, int] = {}  # the model: account -> balance
        self.history: list[tuple[int, dict[int, int]]] = []  # (TxnId, balances after it)
        configuration = {"voters": [1], "learners": [], "epoch": 1, "partitions": partitions, "key_policy": asdict(self.policy)}
        initial = [encode_json(RecordKind.CONFIGURATION, configuration, partition=CLUSTER_GROUP, term=1, index=1)]
        self.configuration: dict[str, Any] = configuration
        voters = {"voters": [1], "learners": [], "epoch": 1}
        initial += [encode_json(RecordKind.CONFIGURATION, voters, partition=p, term=1, index=1) for p in range(partitions)]
        Log.create(self.files, self.directory, self.identity, segment_bytes=segment_bytes, segments=segments,
                   reserve_bytes=4096, initial=initial)  # fmt: skip
        self.cluster_index = 1
        self.notes: list[bytes] = []
        self.next_index = dict.fromkeys(range(partitions), 2)
        self._open()
        self.trust = Trust(self.files, self.directory)
        self.engines: dict[int, PartitionEngine] = {}
        self._open_engines()
        for p in range(partitions):
            value = {"voters": [1], "learners": [], "epoch": 1}
            record = decode_record(encode_json(RecordKind.CONFIGURATION, value, partition=p, term=1, index=1))
            self.engines[p].apply(record)
        self.add_catalog(factor)
        for p in range(partitions):
            self.entry(p, RecordKind.SCHEMA, {"statements": SCHEMA, "txn_id": self.tick(1, p)[0]})
            self.batch(p, [(BEGIN, [10 * p + n]) for n in range(ACCOUNTS)])

    # -- what happens to the node ----------------------------------------------------------------------------------------

    def tick(self, count: int, partition: int) -> list[int]:
        """The next TxnIds: one millisecond each, so that time and TxnId say the same."""
        ids: list[int] = [make_txn_id(millis=self.millis + 1 + n, counter=0, partition=partition) for n in range(count)]
        self.millis += count
        return ids

    def add_catalog(self, factor: int) -> None:
        """The application's code changes."""
        self.version, self.factor = self.version + 1, factor
        bundle = make_bundle(factor)
        value = {
            "version": self.version,
            "hash": bundle.hash,
            "procedures": list(bundle.procedures),
            "bundle": bundle.to_bytes().decode(),
        }
        self.bundles[str(self.version)] = value
        self.cluster_index += 1
        self.log(encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=self.term, index=self.cluster_index))
        self.catalogs.add_live(self.version, load_bundle(bundle))

    def set_policy(self, policy: KeyPolicy) -> None:
        """Another configuration of the cluster group, in force for what follows."""
        self.policy, self.cluster_index = policy, self.cluster_index + 1
        value = {"voters": [1], "learners": [], "epoch": 2, "partitions": self.partitions, "key_policy": asdict(policy)}
        self.configuration = value
        self.log(encode_json(RecordKind.CONFIGURATION, value, partition=CLUSTER_GROUP, term=self.term, index=self.cluster_index))
        for engine in self.engines.values():
            engine.executor.key_policy = policy

    def entry(self, partition: int, kind: RecordKind, value: dict[str, Any], *, live: bool = True) -> int:
        """Logs a control entry; returns its index."""
        index = self.next_index[partition]
        record = encode_json(kind, value, partition=partition, term=self.term, index=index)
        self.next_index[partition] += 1
        self.log(record)
        if live:
            self.engines[partition].apply(decode_record(record))
        return index

    def batch(
        self,
        partition: int,
        calls: Sequence[tuple[int, list[Any]]],
        *,
        skips: frozenset[int] = frozenset(),
        digest: bool = True,
        live: bool = True,
        version: int | None = None,
        keys: Sequence[bytes] | None = None,
    ) -> int:
        """Logs and executes a batch, then logs its digest; returns its index."""
        index, txn_ids = self.next_index[partition], self.tick(len(calls), partition)
        record = encode_batch(
            partition=partition, term=self.term, index=index, catalog=version or self.version, txn_ids=txn_ids,
            procedures=[number for number, _ in calls], params=[orjson.dumps(params) for _, params in calls], keys=keys,
        )  # fmt: skip
        self.next_index[partition] += 1
        self.log(record)
        for at, (txn, (number, params)) in enumerate(zip(txn_ids, calls, strict=True)):
            if number == BEGIN:
                self.balances[params[0]] = 0
            if number == DEPOSIT and at not in skips:
                self.balances[params[0]] += params[1] * self.factor
            if number == MIRROR and params[1] in self.balances:  # else it fails
                self.balances[params[0]] += self.balances[params[1]]
            if number == TRAP:
                self.balances[params[0]] += self.factor
            self.history.append((txn, dict(self.balances)))
        if live:
            applied = self.engines[partition].apply(decode_record(record), {index: skips})
            assert applied is not None
            self.last_txn = txn_ids[-1]
            if digest:
                hashes = b"".join(h.to_bytes(4, "little") for h in applied.result_hashes)
                self.notes.append(encode_digest(partition=partition, term=self.term, index=index,
                                                rows_digest=applied.rows_digest, catalog=self.version,
                                                result_hashes=hashes))  # fmt: skip
        return index

    def deposits(self, count: int, *, calls: int = 3) -> None:
        """Batches of deposits, on all partitions in turn; the calls of some have names in a session."""
        for n in range(count):
            p, keys = n % self.partitions, self._numbered(calls) if n % 5 < 2 else None
            self.batch(p, [(DEPOSIT, [10 * p + (n + c) % ACCOUNTS, n + c + 1]) for c in range(calls)], keys=keys)

    def _numbered(self, calls: int) -> list[bytes]:
        """The next numbers of the node's client, which has seen the outcomes of most others."""
        first, self.numbers = self.numbers, self.numbers + calls
        session = key_fingerprint("", uuid7(self.millis // SESSION_MS * SESSION_MS))
        return [sent_name(session, first + at, max(0, first - 2 * calls)) for at in range(calls)]

    def log(self, *records: bytes) -> int:
        """One block, with the digests that wait for one, as in a node; returns its number."""
        self.feed.arrived.clear()
        self.feed.blocks.append([*records, *self.notes])
        self.notes = []
        if not self.wal.run_turn():  # the segment is full: a thread of the log goes on to the next
            self.wal.kick()
        assert self.feed.arrived.wait(PATIENCE_S)
        return self.feed.durable_block

    def snapshot(self, partition: int, *, mark: bool = True) -> str:
        """Takes a verified snapshot of the partition as it is; returns its path."""
        temporary = temporary_path(self.directory, partition)
        os.mkdir(temporary)
        capture = ImageCapture(self.engines[partition].state, os.path.join(temporary, IMAGE_NAME))
        while not capture.step():
            pass
        report = {name: value for name, value in capture.report().items() if name != "path"}
        final = free_path(self.files, self.directory, partition=partition, index=report["index"])
        facts = {
            **report, "log_block": self.feed.durable_block, "epoch": 1, "configuration": self.configuration,
            "catalogs": self.bundles, "environment": None, "key_policy": asdict(self.policy), "created": "2026-01-01T00:00:00Z",
            "cluster_id": self.identity.cluster_id.hex(), "node_id": 1, "incarnation": self.identity.incarnation.hex(),
        }  # fmt: skip
        seal(self.files, temporary, final, facts)
        if mark:
            value = {"name": os.path.basename(final), **report, "log_block": facts["log_block"]}
            self.log(
                encode_json(RecordKind.SNAPSHOT_MARK, value, partition=partition, term=report["term"], index=report["index"])
            )
        return final

    def close(self) -> None:
        """An orderly stop, with commit marks."""
        self.log(*(encode_commit_mark(partition=p, term=self.term, commit=n - 1, closed_txn=self.last_txn)
                   for p, n in self.next_index.items()))  # fmt: skip
        self.stop()

    def stop(self) -> None:
        """The log and the state files are closed; where they stand is the test's affair."""
        for engine in self.engines.values():
            engine.close()
        self.engines = {}
        self.wal.close()

    def restart(self, *, term: int | None = None) -> None:
        """Opens again without any recovery."""
        self.term = term or self.term + 1
        self._open()
        self._open_engines()

    # -- what tests look at ----------------------------------------------------------------------------------------------

    def state_file(self, partition: int) -> str:
        return state_path(self.directory, partition)

    def digests(self, directory: str | None = None) -> dict[int, dict[str, TableDigest]]:
        """Partition -> table -> digest, of closed state files."""
        return {p: digests_of(state_path(directory or self.directory, p)) for p in range(self.partitions)}

    def forget_state(self, partition: int) -> None:
        """Loses the state file, as a power cut may."""
        self.trust.discard(partition)

    def copy(self, folder: Path) -> str:
        """A copy of the whole directory."""
        shutil.copytree(self.directory, folder)
        return str(folder)

    def _open(self) -> None:
        self.wal, self.feed = Log.open(self.files, self.directory), Feed()
        OPENED.append(self.wal)
        self.wal.start(self.feed, threads=1, seal_after_s=60, sync="off")  # nobody cuts the power here

    def _open_engines(self) -> None:
        for p in range(self.partitions):
            state = PartitionState.open(state_path(self.directory, p), partition=p)
            self.trust.grant(p)
            self.engines[p] = PartitionEngine(state, self.catalogs, digest_rows=True, policy=self.policy)


def digests_of(path: str) -> dict[str, TableDigest]:
    """Digests of a closed state file."""
    assert not os.path.exists(path + "-wal") or not os.path.getsize(path + "-wal"), "the state file is open"
    connection = open_image(path)
    try:
        return table_digests(connection)
    finally:
        connection.close()


def balances_of(directory: str, partitions: int = 2) -> dict[int, int]:
    """Account -> balance over all partitions of a directory."""
    found: dict[int, int] = {}
    for p in range(partitions):
        connection = open_image(state_path(directory, p))
        found |= {int(str(i)): int(str(b)) for i, b in connection.execute("SELECT id, balance FROM accounts")}
        connection.close()
    return found
