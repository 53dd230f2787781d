"""A log over the simulated disk, driven by hand, and a list of what it acknowledged.

One rule: no threads and no clock, so that the n-th operation is the same in every run and a crash at n means one thing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import HEADER, aligned, padded
from cmdlog.wal.format.record import Record, RecordKind, encode_digest, encode_json
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.log import Log
from tests.wal.sim.simfiles import SimFiles

NODE = "/node"
LOG = "/node/log"
IDENTITY = Identity(b"cluster-number-1", 7, b"life-one")
OTHER = Identity(b"cluster-number-1", 8, b"life-two")
SEGMENT_BYTES = 32 << 10
SEGMENTS = 6
RESERVE_BYTES = 4096


def generations(first: int = 1000) -> Callable[[], int]:
    """Distinct generations in a stated order."""
    counter = itertools.count(first)
    return lambda: next(counter)


def record(number: int, size: int = 64) -> bytes:
    """The record that says `number`; a digest, so that it is no entry and needs no place in a group's order."""
    hashes = b"\xa5" * ((size - 16) // 4 * 4)
    return encode_digest(partition=number % 3, term=1, index=number, rows_digest=number, catalog=1, result_hashes=hashes)


def number_of(found: Record) -> int:
    """What `record` said."""
    return int.from_bytes(found.payload[:8], "little")


class ListSource:
    """Gives out what it was given, in order, and remembers what became of it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.taken: deque[list[int]] = deque()
        self.unwritten: deque[list[int]] = deque()
        self.written_numbers: list[int] = []
        self.acknowledged: list[int] = []
        self.blocks: list[int] = []
        self.errors: list[WalError] = []
        self.sent: list[int] = []
        self.pending_bytes, self.waits, self.lax = 0, True, False

    def put(self, number: int, size: int = 64) -> None:
        data = record(number, size)
        self.waiting.append((number, data))
        self.pending_bytes += len(data)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """As much as fits, at least one."""
        numbers: list[int] = []
        records: list[bytes] = []
        total = HEADER.bytes
        while self.waiting:
            number, data = self.waiting[0]
            total += aligned(len(data))
            if records and padded(total) > bytes_max:
                break
            self.waiting.popleft()
            self.pending_bytes -= len(data)
            numbers.append(number)
            records.append(data)
        if records:
            self.taken.append(numbers)
            self.unwritten.append(numbers)
            self.sent += numbers
        return records

    def written(self, block: int) -> None:
        self.written_numbers += self.unwritten.popleft()

    def durable(self, block: int) -> None:
        assert not self.errors, "acknowledged after the failure was told"
        assert not self.blocks or block > self.blocks[-1], "acknowledged out of order"
        self.blocks.append(block)
        self.acknowledged += self.taken.popleft()

    def failed(self, error: WalError) -> None:
        self.errors.append(error)


def create(
    files: Files, *, identity: Identity = IDENTITY, initial: Sequence[bytes] = (), directory: str = NODE,
    segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS, first_generation: int = 1000,
) -> None:  # fmt: skip
    """A node in the simulated machine."""
    Log.create(
        files,
        directory,
        identity,
        segment_bytes=segment_bytes,
        segments=segments,
        reserve_bytes=RESERVE_BYTES,
        initial=initial,
        generation=generations(first_generation),
    )


def open_log(files: Files, *, first_generation: int = 2000, directory: str = NODE) -> tuple[Log, ListSource]:
    """Opened and started without threads."""
    log = Log.open(files, directory, generation=generations(first_generation))
    source = ListSource()
    log.start(source, threads=0)
    return log, source


def at(block: int) -> Lsn:
    """The block's first record."""
    return Lsn(BlockNumber(block), 0)


def append(log: Log, source: ListSource, numbers: Sequence[int], size: int = 64) -> None:
    """One block per number."""
    for number in numbers:
        source.put(number, size)
        log.run_turn()


def numbers_in(log: Log, after: Lsn | None = None) -> list[int]:
    """What the log holds, as `record` numbered it."""
    return [number_of(found) for _, found in log.read(after) if found.kind is RecordKind.DIGEST]


def hard_state(term: int, vote: int | None, partition: int = 0) -> bytes:
    """A HARD_STATE record."""
    return encode_json(RecordKind.HARD_STATE, {"vote": vote}, partition=partition, term=term, index=0)


def sim(seed: int = 0) -> SimFiles:
    """A machine with a node in it: two acknowledged records in segment 1."""
    files = SimFiles(seed)
    create(files, initial=[hard_state(1, 7)])
    return files
