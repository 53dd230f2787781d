"""A seeded log for the merge: streams that lag, idle, are superseded or skipped, beside a plain list of what counts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_commit_mark, encode_digest, encode_json
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS, BlockNumber, Lsn
from procedures.idempotency.session_calls import sent_name

Row = tuple[int, int, int, int]  # TxnId, partition, index, position
Names = Literal["none", "keys", "session", "mixed", "ends"]
NAMES: Final = get_args(Names)


class Listed:
    """A log in memory, which counts the records that it was asked for. It takes the place of a `LogSource`."""

    def __init__(self, blocks: Sequence[Sequence[bytes]], directory: str = "node") -> None:
        self.directory = directory
        self.records: list[tuple[Lsn, Record]] = []
        self.served = self.txn_id_max = 0
        self.last_block = len(blocks)
        for number, raws in enumerate(blocks, 1):
            offset = 0
            for raw in raws:
                self.records.append((Lsn(BlockNumber(number), offset), decode_record(raw)))
                offset += -(-len(raw) // 8) * 8

    def read(self, *, from_block: int, upto_block: int | None = None) -> Iterator[tuple[Lsn, Record]]:
        for lsn, record in self.records:
            if from_block <= lsn.block and (upto_block is None or lsn.block <= upto_block):
                self.served += 1
                yield lsn, record

    def read_with_gaps(self, *, from_block: int) -> Iterator[tuple[Lsn, Record]]:
        return self.read(from_block=from_block)


def batch(
    partition: int,
    index: int,
    txn_ids: Sequence[int],
    *,
    term: int = 1,
    names: Names = "none",
    filler: int = 0,
    packed: bool = False,
) -> bytes:
    """A batch whose calls say where they stand, and how they are named: [partition, index, position, filler, name]."""
    sent = _sent_names(names, index, len(txn_ids))
    shown = [b"null"] * len(txn_ids) if sent is None else [b'"%s"' % name[:24].hex().encode() for name in sent]
    params = [b'[%d,%d,%d,"%s",%s]' % (partition, index, at, b"x" * filler, name) for at, name in enumerate(shown)]
    return encode_batch(
        partition=partition, term=term, index=index, catalog=1, txn_ids=txn_ids, params=params,
        procedures=[(index + at) % 7 for at in range(len(txn_ids))],
        keys=sent, ended=[b"e" * 16] if names == "ends" else (), compress=packed,
    )  # fmt: skip


def _sent_names(names: Names, index: int, count: int) -> list[bytes] | None:
    """What the calls of batch `index` bring along."""
    key = [bytes([at + 1]) * 16 if at % 2 else NO_KEY for at in range(count)]
    if names in ("none", "ends"):
        return None if names == "none" else [NO_KEY] * count
    if names == "keys":
        return key
    if names == "session":  # its numbers count on
        return [sent_name(b"s" * 16, 1000 * index + at, 0) for at in range(count)]
    distance = 1 << 5 * (index % 8)  # columns of every width
    mine = [sent_name(bytes([index % 5 + 1, at % 3]) * 8, 7 + at * distance, at) for at in range(count)]
    return mine if index % 2 else [key[at] if at % 4 < 2 else name for at, name in enumerate(mine)]


def ticks(first: int, count: int, partition: int) -> range:
    """`count` TxnIds that follow each other."""
    return range(first << PARTITION_BITS | partition, (first + count) << PARTITION_BITS | partition, 1 << PARTITION_BITS)


@dataclass(slots=True)
class Script:
    """One partition's records in its log, in order, and what counts of them."""

    partition: int
    records: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)  # of every call that is not superseded, the skipped ones too
    controls: list[int] = field(default_factory=list)  # indexes of entries without calls
    skipped: set[tuple[int, int]] = field(default_factory=set)  # (index, position)
    last_index: int = 0
    last_txn: int = 0


@dataclass(slots=True)
class World:
    """A log, and what is taken from it: partition -> (after, upto)."""

    log: Listed
    scripts: dict[int, Script]
    wanted: dict[int, tuple[int, int]]

    def rows(self) -> list[Row]:
        """What a merge must give, by the obvious way."""
        found = []
        for partition, (after, upto) in self.wanted.items():
            script = self.scripts[partition]
            found += [row for row in script.rows if after < row[2] <= upto and row[2:] not in script.skipped]
        return sorted(found)

    def entry_bytes_max(self) -> list[int]:
        """Of the largest entry of each wanted partition."""
        largest: dict[int, int] = {}
        for _, record in self.log.records:
            largest[record.partition] = max(largest.get(record.partition, 0), len(record.raw))
        return [largest.get(partition, 0) for partition in self.wanted]


class Writer:
    """Writes random scripts. Terms only grow, and marks promise only what holds."""

    def __init__(self, chance: random.Random, *, partitions: int, steps: int) -> None:
        self.chance = chance
        self.scripts = {partition: Script(partition) for partition in range(partitions)}
        self.tick, self.term = 1000, 1
        idle = {partition for partition in self.scripts if chance.random() < 0.2}
        for _ in range(steps):
            self.tick += chance.randrange(1, 30)
            kind = chance.random()
            if kind < 0.05:
                self._everywhere()
            else:
                self._step(self.scripts[chance.randrange(partitions)], idle)
        for script in self.scripts.values():
            if chance.random() < 0.3:  # an uncommitted tail, which a later term took away
                self._superseded(script, truncated=True)

    def _everywhere(self) -> None:
        """One call that enters every partition."""
        txn = self.tick << PARTITION_BITS | MULTI_PARTITION
        for script in self.scripts.values():
            self._batch(script, [txn])
        self.tick += 1

    def _step(self, script: Script, idle: set[int]) -> None:
        chance, kind = self.chance, self.chance.random()
        if script.partition in idle:
            self._mark(script)
        elif kind < 0.6:
            count = chance.randrange(1, 9)
            if chance.random() < 0.3:
                places = sorted(chance.sample(range(3 * count), count))
                ids: Sequence[int] = [(self.tick + place) << PARTITION_BITS | script.partition for place in places]
            else:
                ids = ticks(self.tick, count, script.partition)
            self._batch(script, ids)
            self.tick += 3 * count if chance.random() < 0.2 else 0
        elif kind < 0.7:
            self._control(script)
        elif kind < 0.8:
            self._skip(script)
        elif kind < 0.9:
            self._superseded(script, truncated=chance.random() < 0.5)
        else:
            self._mark(script)

    def _batch(self, script: Script, ids: Sequence[int]) -> None:
        if ids[0] <= script.last_txn:  # its clock runs ahead of the others'
            first = (script.last_txn >> PARTITION_BITS) + 1
            ids = ticks(first, len(ids), script.partition)
            self.tick = max(self.tick, first + len(ids))
        script.last_index, script.last_txn = script.last_index + 1, ids[-1]
        index = script.last_index
        filler = self.chance.choice([0, 0, 40])
        names, packed = self.chance.choice(("none", *NAMES)), self.chance.random() < 0.1
        raw = batch(script.partition, index, ids, term=self.term, names=names, filler=filler, packed=packed)
        script.records.append(raw)
        script.rows += [(txn, script.partition, index, at) for at, txn in enumerate(ids)]
        if self.chance.random() < 0.3:
            hashes = bytes(4 * len(ids))
            script.records.append(encode_digest(partition=script.partition, term=self.term, index=index, rows_digest=1,
                                                catalog=1, result_hashes=hashes))  # fmt: skip

    def _control(self, script: Script) -> None:
        script.last_index += 1
        kind = self.chance.choice([RecordKind.SCHEMA, RecordKind.CONFIGURATION])
        value: dict[str, object] = {"statements": ["x"]}
        if kind is RecordKind.SCHEMA and self.tick << PARTITION_BITS > script.last_txn:
            script.last_txn = self.tick << PARTITION_BITS | script.partition
            value = {**value, "txn_id": script.last_txn}
        script.controls.append(script.last_index)
        script.records.append(encode_json(kind, value, partition=script.partition, term=self.term, index=script.last_index))

    def _skip(self, script: Script) -> None:
        if not script.rows:
            return
        _, _, index, position = self.chance.choice(script.rows)
        script.last_index += 1
        script.controls.append(script.last_index)
        script.skipped.add((index, position))
        script.records.append(self._skip_of(script.partition, script.last_index, index, position))

    def _skip_of(self, partition: int, at: int, index: int, position: int) -> bytes:
        value = {"index": index, "position": position, "reason": "died"}
        return encode_json(RecordKind.SKIP, value, partition=partition, term=self.term, index=at)

    def _superseded(self, script: Script, *, truncated: bool) -> None:
        """Entries that a later term replaces, with skips among them that are void as well."""
        index, tick = script.last_index, max(self.tick, (script.last_txn >> PARTITION_BITS) + 1)
        for _ in range(self.chance.randrange(1, 4)):
            index += 1
            if script.rows and self.chance.random() < 0.3:
                _, _, of, position = self.chance.choice(script.rows)
                script.records.append(self._skip_of(script.partition, index, of, position))
            else:
                script.records.append(batch(script.partition, index, ticks(tick, 3, script.partition), term=self.term))
                tick += 3
        if self.chance.random() < 0.3:  # it did not know that it was deposed, and its clock was ahead of the successor's
            closed = tick + self.chance.randrange(40) << PARTITION_BITS
            script.records.append(
                encode_commit_mark(partition=script.partition, term=self.term, commit=script.last_index, closed_txn=closed)
            )
        self.term += 1
        if truncated:
            script.records.append(
                encode_json(
                    RecordKind.TRUNCATION, {"checksum": 0}, partition=script.partition, term=1, index=script.last_index + 1
                )
            )
        else:
            self._batch(script, ticks(self.tick, 2, script.partition))

    def _mark(self, script: Script) -> None:
        """A commit mark, or a checkpoint, whose closed TxnId is below all that the partition still gets."""
        closed = max(script.last_txn, (self.tick - 1) << PARTITION_BITS)
        script.last_txn = max(script.last_txn, closed)
        if self.chance.random() < 0.7:
            script.records.append(
                encode_commit_mark(partition=script.partition, term=self.term, commit=script.last_index, closed_txn=closed)
            )
            return
        groups = GroupStates()
        state = groups.state(script.partition)
        state.last_index = state.commit = script.last_index
        state.closed_txn = closed
        script.records += groups.checkpoints(oldest_block=1)


def make_world(seed: int) -> World:
    """Several partitions, interleaved by chance."""
    chance = random.Random(seed)
    partitions = chance.randrange(1, 6)
    scripts = Writer(chance, partitions=partitions, steps=chance.randrange(5, 80)).scripts
    log, wanted = Listed(interleave(chance, scripts)), {}
    for partition, script in scripts.items():
        after = chance.choice([0, 0, chance.randrange(script.last_index + 1)])
        upto = chance.choice([script.last_index, chance.randrange(after, script.last_index + 1)])
        if chance.random() < 0.9:
            wanted[partition] = (after, upto)
    return World(log, scripts, wanted)


def interleave(chance: random.Random, scripts: dict[int, Script]) -> list[list[bytes]]:
    """Blocks that hold every script's records in their order; a partition may be written long before another."""
    left = {partition: list(reversed(script.records)) for partition, script in scripts.items() if script.records}
    weights = {partition: chance.choice([0.01, 1, 1, 10]) for partition in left}
    blocks: list[list[bytes]] = []
    while left:
        names = list(left)
        block = []
        for _ in range(chance.randrange(1, 6)):
            partition = chance.choices(names, [weights[name] for name in names])[0]
            if left.get(partition):
                block.append(left[partition].pop())
        left = {partition: records for partition, records in left.items() if records}
        if block:
            blocks.append(block)
    return blocks
