"""The sites of a simulated node: what `tests.cluster.lists_app` does, in a dict, when the world says so.

One rule: a state is what its entries make of it, with the known keys, as a site's file is. Memory of the process, and so a kill
leaves it as it is; a loss of power leaves what was last captured.
"""

from __future__ import annotations

import copy
import struct
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cmdlog.node.placing.session_owners import EVERYWHERE
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.slot_map import make_routes
from cmdlog.wal.format.batch import NO_KEY, decode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_record
from cmdlog.wal.ids import txn_partition
from cmdlog.wal.skips import VOID
from procedures.idempotency.known_outcome import Status
from procedures.idempotency.session_calls import NAME_BYTES, SESSION_BYTES, split_names
from tests.cluster.lists_app import db, list_names

ROUTES: Final = make_routes(db)
NAMES: Final = {route.number: name for name, route in ROUTES.items()}
SKIPPED: Final = b'{"code":"skipped"}'
EXPIRED: Final = b'{"code":"session_expired"}'
SHARED_MARK: Final = b"*"


@dataclass(slots=True)
class ListState:
    """One partition's state.

    Attributes:
        keys: transaction and answer of every call that had a name, of session calls those above the floor.
        floors: of every session, apart for calls on all partitions, as in the product's tables.
    """

    partition: int
    partitions: int
    index: int = 2  # what a cluster begins with
    term: int = 1
    txn_id: int = 0
    checksum: int = 0  # of the last entry; 0: not known
    lists: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[bytes, tuple[int, int, bytes]] = field(default_factory=dict)  # -> status, transaction, body
    owners: dict[bytes, int] = field(default_factory=dict)  # of every key, EVERYWHERE for a call on all partitions
    floors: dict[bytes, int] = field(default_factory=dict)  # session, with a mark for calls on all partitions -> floor

    def __post_init__(self) -> None:
        self.lists = self.lists or {list_names(self.partitions)[self.partition]: []}

    def captured(self) -> ListState:
        """A copy that does not change."""
        return copy.deepcopy(self)

    def apply(self, data: bytes | Record, skipped: Mapping[int, set[int]]) -> BatchAnswer | None:
        """Runs the next entry, without the skipped calls: index -> positions."""
        record = decode_record(data) if isinstance(data, bytes) else data
        assert record.index == self.index + 1, f"partition {self.partition}: entry {record.index} after {self.index}"
        self.index, self.term, self.checksum = record.index, record.term, record.checksum
        positions = skipped.get(record.index, set())
        if record.kind is not RecordKind.BATCH or VOID in positions:
            return None
        batch = decode_batch(record)
        assert batch.first_txn > self.txn_id, f"partition {self.partition}: {batch.first_txn} is given after {self.txn_id}"
        self.txn_id = batch.last_txn
        if batch.sessions is not None:
            mark = SHARED_MARK if txn_partition(batch.first_txn) != self.partition else b""
            for session, floor in zip(batch.sessions.ids, batch.sessions.floors, strict=True):
                self._raise_floor(session, mark, floor)
        keys, params = batch.key_list() or [NO_KEY] * batch.count, batch.params()
        outcomes = [
            self._run(batch.txn_ids[at], NAMES[batch.procedures[at]], params[at], keys[at], skipped=at in positions)
            for at in range(batch.count)
        ]
        hashes = struct.pack(f"<{len(outcomes)}I", *[zlib.crc32(body) for _, _, body in outcomes])
        digest = zlib.crc32(orjson.dumps(self.lists)) or 1
        return BatchAnswer(digest, hashes, outcomes, bytes(status for status, _, _ in outcomes))

    def read(self, name: str, params: list[Any]) -> bytes:
        """The body of a read's answer."""
        return orjson.dumps(self.lists if name == "values_of_all" else self.lists[params[0]])

    def _run(self, txn_id: int, name: str, params: list[Any], key: bytes, *, skipped: bool) -> tuple[int, int, bytes]:
        """A call that is skipped has an outcome like any other, which is kept under its name."""
        if key in self.keys:
            return self.keys[key]
        shared = txn_partition(txn_id) != self.partition
        if len(key) == NAME_BYTES:
            (session,), (number,) = split_names((key,))
            if number <= self.floors[session + (SHARED_MARK if shared else b"")]:
                return int(Status.SESSION_EXPIRED), 0, EXPIRED
        status = int(Status.FAILED if skipped else Status.OK)
        body = SKIPPED if skipped else orjson.dumps(self._call(name, params))
        if key != NO_KEY:
            self.keys[key] = status, txn_id, body
            self.owners[key] = EVERYWHERE if shared else self.partition
        return status, 0, body

    def _raise_floor(self, session: bytes, mark: bytes, floor: int) -> None:
        """The outcomes up to there are forgotten, of this kind of calls."""
        self.floors[session + mark] = floor = max(floor, self.floors.get(session + mark, 0))
        mine = [key for key in self.keys if len(key) == NAME_BYTES and key[:SESSION_BYTES] == session]
        for key in mine:
            if split_names((key,))[1][0] <= floor and (self.owners[key] == EVERYWHERE) == bool(mark):
                del self.keys[key], self.owners[key]

    def _call(self, name: str, params: list[Any]) -> Any:
        if name == "append":
            values = self.lists[params[0]]
            values.append(params[1])
            return len(values)
        assert name == "append_all", name
        for values in self.lists.values():
            values.append(params[0])
        return {each: len(values) for each, values in self.lists.items()}


class ListSites:
    """Takes batches and reads (`cmdlog.node.sequencing.partition_pipeline.Deliver`); runs one when `serve` is called."""

    def __init__(
        self,
        states: dict[int, ListState],
        *,
        applied: Callable[[int, int, BatchAnswer | None], None],
        read_done: Callable[[int, int, int, bytes], None],
    ) -> None:
        """`applied` gets partition, index and answer; `read_done` partition, ident, transaction and body."""
        self.states, self._applied, self._read_done = states, applied, read_done
        self.waiting: dict[int, deque[tuple[int, bytes, bool]]] = {partition: deque() for partition in states}
        self._stopped: set[int] = set()
        self.skipped: dict[int, dict[int, set[int]]] = {partition: {} for partition in states}

    def batch(self, partition: int, record: bytes, index: int) -> None:
        self.waiting[partition].append((index, record, False))

    def read(self, partition: int, ident: int, calls: bytes) -> None:
        self.waiting[partition].append((ident, calls, True))

    def leave_out(self, partition: int, index: int, position: int) -> None:
        """A logged skip."""
        self.skipped[partition].setdefault(index, set()).add(position)

    def hang(self, partition: int) -> None:
        """The site does nothing before `go_on`."""
        self._stopped.add(partition)

    def stop(self, partition: int) -> int:
        """The site hangs in its next batch; the index of that. Only where `runs_batch`."""
        self.hang(partition)
        return self.waiting[partition][0][0]

    def go_on(self, partition: int) -> None:
        """A successor runs the batch again."""
        self._stopped.discard(partition)

    def runs_batch(self, partition: int) -> bool:
        """Whether its next thing is a batch."""
        return partition in self.busy and not self.waiting[partition][0][2]

    @property
    def busy(self) -> list[int]:
        """Partitions with something to do."""
        return [partition for partition, waiting in self.waiting.items() if waiting and partition not in self._stopped]

    def serve(self, partition: int) -> None:
        """Does the next thing that the partition's site was sent."""
        ident, data, is_read = self.waiting[partition].popleft()
        state = self.states[partition]
        if is_read:
            ((number, params, _version),) = orjson.loads(data)
            self._read_done(partition, ident, state.txn_id, state.read(NAMES[number], params))
            return
        self._applied(partition, ident, state.apply(data, self.skipped[partition]))
