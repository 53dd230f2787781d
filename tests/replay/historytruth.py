"""What a made-up cluster has really done: the committed entries, executed as a live node executes them.

One rule: an entry comes in when it is committed, in order, and never goes out again. A multi-partition call, and whatever follows
it in a partition, is executed and acknowledged when it is committed in all partitions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cmdlog.wal.format.batch import places_of
from cmdlog.wal.format.call_places import CallVerdict, TermTable, judge_call
from cmdlog.wal.format.record import RecordKind, decode_record
from procedures import Database
from procedures.code.loaded_modules import load_bundle
from procedures.idempotency.known_outcome import KeyPolicy, Status
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine
from snapshot.capture.image import ImageCapture
from snapshot.table_digest import TableDigest, table_digests
from tests.replay.historyapp import history_bundle
from tests.replay.historynode import Did, Entry


@functools.cache
def catalog_value(version: int, factor: int) -> dict[str, Any]:
    """The catalog record's value for the application whose deposits count `factor` times."""
    bundle = history_bundle(factor)
    return {"version": version, "hash": bundle.hash, "procedures": list(bundle.procedures), "bundle": bundle.to_bytes().decode()}


@functools.cache
def _database(factor: int) -> Database:
    return load_bundle(history_bundle(factor))


class Truth:
    """The one true state of every partition."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._folder = folder
        folder.mkdir()
        self.committed: dict[int, list[Entry]] = {}  # group -> entries from index 1 on
        self.acknowledged: list[tuple[int, int, int]] = []  # (partition, index, TxnId)
        self.factors: dict[int, int] = {}  # catalog version -> factor
        self.catalogs: dict[int, tuple[int, Mapping[str, Any]]] = {}  # version -> index in the cluster group, value
        self.did: dict[int, dict[int, Did]] = {p: {} for p in range(partitions)}
        self.images: dict[int, list[tuple[str, Mapping[str, Any]]]] = {p: [] for p in range(partitions)}
        self._balances: list[tuple[int, int, int]] = []  # (TxnId, account, balance after it)
        self.notes: list[int] = []  # numbers of the multi-partition calls that were acknowledged
        self.skipped: set[int] = set()  # TxnIds of calls on all partitions that were skipped before anybody ran them
        self._executed = dict.fromkeys(range(partitions), 0)  # index
        self._terms = {partition: TermTable() for partition in range(partitions)}
        self._now: dict[int, int] = {}
        self._code = Catalogs()
        self._engines = {
            p: PartitionEngine(
                PartitionState.open(str(folder / f"p{p}.sqlite"), partition=p), self._code, digest_rows=True, policy=KeyPolicy()
            )
            for p in range(partitions)
        }

    def last(self, group: int) -> int:
        """Index of the last committed entry."""
        return len(self.committed.get(group, ()))

    def last_txn(self, group: int, upto: int | None = None) -> int:
        """The highest TxnId of the group's committed batches up to an index."""
        for entry in reversed(self.committed.get(group, [])[:upto]):
            if entry.calls:
                return entry.calls[-1][0]
        return 0

    def commit(self, entry: Entry) -> None:
        """The next entry of its group."""
        done = self.committed.setdefault(entry.group, [])
        assert entry.index == len(done) + 1, "entries are committed in order"
        done.append(entry)
        self._terms.setdefault(entry.group, TermTable()).add(entry.index, entry.term)
        if entry.kind is RecordKind.CATALOG:
            self._add_code(entry)
        for partition in [entry.group, *self._executed] if entry.group in self._executed else ():
            self._execute(partition)

    @property
    def waits(self) -> bool:
        """Whether anything committed waits for what other partitions will have."""
        return any(executed < len(self.committed.get(p, ())) for p, executed in self._executed.items())

    def _execute(self, partition: int) -> None:
        """As far as the partition is committed, and every multi-partition call on the way is decided."""
        for entry in self.committed.get(partition, [])[self._executed[partition] :]:
            verdict = judge_call(places_of(decode_record(entry.raw)), self._terms) if entry.multi else CallVerdict.IN
            if verdict is CallVerdict.OPEN:
                return
            self._executed[partition] = entry.index
            if verdict is CallVerdict.IN:
                self._apply(entry)
            else:
                place = {"index": entry.index, "term": entry.term, "checksum": entry.checksum}
                self._engines[partition].executor.advance(**place)

    def _apply(self, entry: Entry) -> None:
        skipped = entry.multi in self.skipped
        applied = self._engines[entry.group].apply(decode_record(entry.raw), {entry.index: (0,)} if skipped else {})
        if applied is None:
            return
        assert set(applied.statuses) == {Status.FAILED if skipped else Status.OK}
        hashes = b"".join(value.to_bytes(4, "little") for value in applied.result_hashes)
        self.did[entry.group][entry.index] = Did(applied.rows_digest, entry.catalog, hashes)
        if skipped:
            return
        if entry.multi:
            self.acknowledged.append((entry.group, entry.index, entry.multi))
            self.notes += [entry.calls[0][2]] if entry.group == 0 else []
        for txn_id, account, amount in entry.calls if not entry.multi else ():
            opened = amount < 0
            self._now[account] = 0 if opened else self._now[account] + amount * self.factors[entry.catalog]
            self._balances.append((txn_id, account, self._now[account]))
            self.acknowledged.append((entry.group, entry.index, txn_id))

    def balances_at(self, txn_id: int | None = None) -> dict[int, int]:
        """Account -> balance after all calls up to the TxnId (None: all of them)."""
        return {account: balance for at, account, balance in self._balances if txn_id is None or at <= txn_id}

    def digests(self) -> dict[int, dict[str, TableDigest]]:
        """Partition -> table -> digest."""
        return {p: table_digests(engine.state.connection) for p, engine in self._engines.items()}

    def image(self, partition: int, upto: int) -> tuple[str, Mapping[str, Any]] | None:
        """The newest image that holds nothing behind the index, and where it stands. Taken now if the state is there."""
        engine = self._engines[partition]
        images = self.images[partition]
        if engine.state.position.index <= upto and not any(at["index"] == engine.state.position.index for _, at in images):
            path = str(self._folder / f"image-{partition}-{engine.state.position.index}.sqlite")
            capture = ImageCapture(engine.state, path)
            while not capture.step():
                pass
            images.append((path, {name: value for name, value in capture.report().items() if name not in ("path", "kind")}))
        fitting = [image for image in images if image[1]["index"] <= upto]
        return max(fitting, key=lambda image: int(image[1]["index"]), default=None)

    def facts(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """What a manifest says beside the position and the node."""
        return {
            "epoch": int(configuration.get("epoch", 0)),
            "configuration": dict(configuration),
            "catalogs": {str(version): dict(value) for version, (_, value) in self.catalogs.items()},
            "environment": None,
            "key_policy": asdict(KeyPolicy()),
        }

    def close(self) -> None:
        """Closes the state files."""
        for engine in self._engines.values():
            engine.close()
        self._engines = {}

    def _add_code(self, entry: Entry) -> None:
        assert entry.value is not None
        version = int(entry.value["version"])
        self.catalogs[version] = entry.index, entry.value
        self._code.add_live(version, _database(self.factors[version]))
