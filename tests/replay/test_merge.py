"""The merge: every invocation once, in TxnId order, whatever way the logs interleave their streams, in bounded memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import RECORD, BadRecord, Record, decode_record, encode_commit_mark, peek_record
from cmdlog.wal.ids import PARTITION_BITS
from cmdlog.wal.log import Log
from replay.errors import StreamDamaged
from replay.history.chunks import Chunk, Gathered, make_chunk
from replay.history.cursors import HELD_OVERHEAD_BYTES, ChosenLog, MergeStream
from replay.history.merge import Controls, Merge, MergeOrder, streams_of
from replay.log.scan import scan
from replay.log.source import open_source
from tests.replay.rig import Feed
from tests.replay.streamkit import NAMES, Listed, Names, Row, World, batch, make_world, ticks
from tests.waiting import PATIENCE_S

SEEDS = 100


def _logs_of(world: World) -> list[ChosenLog]:
    return [ChosenLog(f"node-{number}", log, 1) for number, log in enumerate(world.logs)]


def _merge_of(world: World, **settings: object) -> Merge:
    logs = _logs_of(world)
    return Merge(logs, streams_of(logs, world.wanted), **settings)  # type: ignore[arg-type]


def _rows_of(chunk: Chunk) -> list[Row]:
    entries = [record.index for record in chunk.batches.records]
    columns = zip(chunk.txn_ids, chunk.partitions, chunk.batch_numbers, chunk.positions, strict=True)
    return [(int(txn), int(partition), entries[number], int(position)) for txn, partition, number, position in columns]


def test_merge_gives_what_the_plain_sort_gives() -> None:
    """Random logs, with lags, idle partitions, superseded suffixes, marks and skips: the sequence is the model's, row by row."""
    for seed in range(SEEDS):
        world = make_world(seed)
        found = [row for chunk in _merge_of(world).chunks() for row in _rows_of(chunk)]
        assert found == world.rows(), f"seed {seed}"


def test_window_is_kept_however_small() -> None:
    """With a window of some entries the sequence is the same, and no more is held but where one entry exceeds its share."""
    opened = 0
    for seed in range(SEEDS):
        world = make_world(seed)
        window = random.Random(seed).choice([0, 2000, 6000, 20_000])
        merge = _merge_of(world, window_bytes_max=window)
        found = [row for chunk in merge.chunks() for row in _rows_of(chunk)]
        assert found == world.rows(), f"seed {seed}"
        share = window // 2 // max(1, len(world.wanted))
        largest = [max(share, size + HELD_OVERHEAD_BYTES) for size in world.entry_bytes_max()]
        assert merge.held_bytes_max <= window // 2 + sum(largest), f"seed {seed}"
        opened += merge.cursors_opened - len(world.logs)
    assert opened > SEEDS / 2


def test_invocations_carry_their_parameters_and_keys() -> None:
    """One by one, each call has the parameters, procedure and name that were written at its place: a key's, or a session's."""
    named = Counter[int]()
    for seed in range(SEEDS // 3):
        world = make_world(seed)
        calls = list(_merge_of(world).invocations())
        assert [(call.txn_id, call.partition, call.entry, call.position) for call in calls] == world.rows()
        for call in calls:
            assert call.params[:3] == [call.partition, call.entry, call.position]
            assert call.procedure == (call.entry + call.position) % 7
            name = call.params[4]
            assert call.key == (None if name is None else bytes.fromhex(name))
            named[len(call.key or b"")] += 1
    assert min(named[0], named[16], named[24]) > 100


def test_control_entries_stand_between_the_calls_of_their_partition() -> None:
    """Passed on, every entry without calls comes once, in index order, behind all earlier and in front of all later calls."""
    for seed in range(SEEDS // 2):
        world = make_world(seed)
        seen: dict[int, list[int]] = {partition: [] for partition in world.wanted}
        places: dict[int, list[int]] = {partition: [] for partition in world.wanted}
        for chunk in _merge_of(world, controls=Controls.PASSED_ON, window_bytes_max=4000).chunks():
            rows = _rows_of(chunk)
            waiting = list(chunk.controls)
            for at in range(len(rows) + 1):
                while waiting and waiting[0].at == at:
                    record = waiting.pop(0).record
                    seen[record.partition].append(record.index)
                    places[record.partition].append(record.index)
                if at < len(rows):
                    places[rows[at][1]].append(rows[at][2])
            assert not waiting
        for partition, (_, after, upto) in world.wanted.items():
            assert seen[partition] == [at for at in world.scripts[partition].controls if after < at <= upto], f"seed {seed}"
            assert places[partition] == sorted(places[partition]), f"seed {seed}"


def test_streams_that_do_not_wait_come_whole_each() -> None:
    """Per partition, each stream is in order and complete, no chunk holds two of them, and no second cursor is needed."""
    for seed in range(SEEDS // 2):
        world = make_world(seed)
        merge = _merge_of(world, order=MergeOrder.PER_PARTITION, window_bytes_max=1000)
        found: list[Row] = []
        for chunk in merge.chunks():
            assert len(np.unique(chunk.partitions)) <= 1
            found += _rows_of(chunk)
        for partition in world.wanted:
            assert [row for row in found if row[1] == partition] == [row for row in world.rows() if row[1] == partition]
        assert len(found) == len(world.rows())
        assert merge.cursors_opened == len(world.logs)


# -- streams that lag, idle, end -----------------------------------------------------------------------------------------


def test_idle_stream_goes_on_by_its_marks() -> None:
    """A partition without calls, whose marks say what is closed, holds nobody up: one cursor, and little is held."""
    calls = [batch(1, n, ticks(10 * n, 8, 1)) for n in range(1, 300)]
    marks = [encode_commit_mark(partition=0, term=1, commit=0, closed_txn=10 * n + 9 << PARTITION_BITS) for n in range(1, 300)]
    last = batch(0, 1, ticks(5000, 1, 0))
    blocks = [[call, mark] for call, mark in zip(calls, marks, strict=True)]
    for with_marks in (True, False):
        world = [[record for record in block if with_marks or record in calls] for block in blocks]
        logs = [ChosenLog("node", Listed([*world, [last]]), 1)]
        merge = Merge(logs, streams_of(logs, {0: (0, 0, 1), 1: (0, 0, 299)}), window_bytes_max=20_000)
        assert sum(len(chunk) for chunk in merge.chunks()) == 299 * 8 + 1
        assert merge.held_bytes_max <= 20_000
        assert merge.cursors_opened == (1 if with_marks else 2)


def test_second_cursor_is_given_up_when_the_first_has_caught_up() -> None:
    """Behind the skew one cursor serves all again: the long rest of the log is not read twice."""
    late, rest = 60, 2000
    ahead = [[batch(p, n, ticks(10 * n, 2, p), filler=90)] for p in (1, 0) for n in range(1, late + 1)]
    together = [[batch(p, n, ticks(10 * n, 2, p), filler=90) for p in (0, 1)] for n in range(late + 1, late + rest + 1)]
    log = Listed([*ahead, *together])
    streams = [MergeStream(partition, 0, 0, late + rest) for partition in (0, 1)]
    merge = Merge([ChosenLog("node", log, 1)], streams, window_bytes_max=20_000)
    assert sum(len(chunk) for chunk in merge.chunks()) == 4 * (late + rest)
    assert merge.cursors_opened == 2
    assert log.served < 2 * (late + rest) + 3 * late


def test_chunks_stay_small_however_much_is_released_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a stream that held up a full window goes on, what it held comes in chunks of the stated size, not in one."""
    monkeypatch.setattr("replay.history.merge.CHUNK_BYTES_MAX", 10_000)
    blocks = [[batch(1, n, ticks(10 * n, 4, 1), filler=90)] for n in range(1, 200)]
    log = Listed([*blocks, [batch(0, 1, ticks(5000, 1, 0))]])
    merge = Merge([ChosenLog("node", log, 1)], [MergeStream(0, 0, 0, 1), MergeStream(1, 0, 0, 199)])
    sizes = [sum(len(record.raw) for record in chunk.batches.records) for chunk in merge.chunks()]
    assert merge.held_bytes_max > 100_000
    assert max(sizes) <= 12_000
    assert min(sizes[:-1]) > 2500  # two streams share a chunk


def test_last_entry_may_count_in_part() -> None:
    """A moment inside a batch ends its stream there: the calls behind it do not come, and hold nobody up."""
    logs = [
        ChosenLog("node", Listed([[batch(0, 1, ticks(10, 4, 0)), batch(0, 2, ticks(20, 5, 0)), batch(1, 1, ticks(22, 4, 1))]]), 1)
    ]
    for calls, expected in ((0, 4), (3, 7), (5, 9), (-1, 9)):
        streams = [MergeStream(0, 0, 0, 2, upto_calls=calls), MergeStream(1, 0, 0, 1)]
        rows = [row for chunk in Merge(logs, streams).chunks() for row in _rows_of(chunk)]
        assert rows == sorted(rows)
        assert sum(row[1] == 0 for row in rows) == expected
        assert sum(row[1] == 1 for row in rows) == 4


def test_partition_is_taken_from_one_log_only() -> None:
    """Two streams of one partition are refused: each invocation comes once."""
    logs = [ChosenLog(name, Listed([[batch(0, 1, ticks(1, 1, 0))]]), 1) for name in "ab"]
    with pytest.raises(ValueError, match="one log"):
        Merge(logs, [MergeStream(0, 0, 0, 1), MergeStream(0, 1, 0, 1)])


def _until_damage(merge: Merge) -> tuple[list[Row], StreamDamaged]:
    found: list[Row] = []
    try:
        for chunk in merge.chunks():
            found += _rows_of(chunk)
    except StreamDamaged as damage:
        return found, damage
    raise AssertionError("nothing was damaged")


# -- what must be said ---------------------------------------------------------------------------------------------------


def test_log_that_ends_too_early_is_named_with_its_stream() -> None:
    """What was there comes out; then the error says which log, partition and index, and how much was held."""
    logs = [ChosenLog("/data/b", Listed([[batch(3, n, ticks(10 * n, 2, 3), filler=9) for n in range(1, 5)]]), 1)]
    found, damage = _until_damage(Merge(logs, [MergeStream(3, 0, 0, 9)]))
    assert len(found) == 8
    assert damage.log == "/data/b"
    assert damage.waiting == {3: (5, 9)}
    assert "partition 3 from index 5 to 9" in str(damage)
    assert "bytes of it are buffered" in str(damage)


def test_missing_entry_is_named() -> None:
    """An index that is left out is damage, never passed over."""
    logs = [ChosenLog("node", Listed([[batch(0, n, ticks(10 * n, 2, 0)) for n in (1, 2, 4)]]), 1)]
    with pytest.raises(StreamDamaged, match="entry 4 where 3 is expected"):
        list(Merge(logs, [MergeStream(0, 0, 0, 4)]).chunks())


def test_transaction_that_was_closed_cannot_come_any_more() -> None:
    """A mark that an entry behind it contradicts counts for what it is worth after a first look, and is an error without one."""
    early = encode_commit_mark(partition=0, term=1, commit=0, closed_txn=99 << PARTITION_BITS)
    log = Listed([[early, batch(1, 1, ticks(10, 40, 1))], [batch(0, 1, ticks(20, 40, 0)), batch(1, 2, ticks(70, 1, 1))]])
    logs = [ChosenLog("node", log, 1)]
    streams = streams_of(logs, {0: (0, 0, 1), 1: (0, 0, 2)})
    rows = [row for chunk in Merge(logs, streams, window_bytes_max=0).chunks() for row in _rows_of(chunk)]
    assert rows == sorted(rows)
    assert len(rows) == 81
    blind = [MergeStream(0, 0, 0, 1), MergeStream(1, 0, 0, 2)]
    with pytest.raises(StreamDamaged, match="entry 1 begins at transaction"):
        list(Merge(logs, blind, window_bytes_max=0).chunks())


@pytest.mark.parametrize("second", [24, (1 << 53) - 1])
def test_stream_that_goes_backwards_is_named(second: int) -> None:
    """TxnIds of a partition ascend by index and have 63 bits; a log where they do not is no log."""
    logs = [ChosenLog("node", Listed([[batch(0, 1, ticks(20, 5, 0)), batch(0, 2, ticks(second, 2, 0))]]), 1)]
    with pytest.raises(StreamDamaged, match="not after"):
        list(Merge(logs, [MergeStream(0, 0, 0, 2)]).chunks())


@pytest.mark.parametrize("form", ["plain", "column", "packed", "keys", "session", "mixed", "wide", "ends"])
def test_batches_are_checked_as_one_by_one(form: str) -> None:
    """Whatever byte of header, columns or packed text is changed: a chunk refuses what `decode_batch` refuses, nothing else."""
    ids = [t << PARTITION_BITS for t in (3, 5, 6)] if form == "column" else ticks(3, 3, 0)
    index = 7 if form == "wide" else 2  # numbers of a session in 8 bytes
    names: Names = "mixed" if form == "wide" else form if form in NAMES else "none"  # type: ignore[assignment]
    raw = batch(0, index, ids, names=names, filler=30, packed=form == "packed")
    good = decode_record(batch(0, 20, ticks(50, 3, 0), names="mixed"))
    refused = 0
    for at in range(RECORD.bytes, len(raw)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[at] ^= flip
            record = peek_record(bytes(changed))
            why = _refusal(decode_batch, record) or ("63 bits" if changed[RECORD.bytes + 7] & 0x80 else None)
            together = _refusal(lambda one: make_chunk(Gathered([one, good])), record)
            assert (why is None) == (together is None), (at, flip, why, together)
            refused += why is not None
    assert refused > 50


def _refusal(check: Callable[[Record], object], record: Record) -> str | None:
    try:
        check(record)
    except BadRecord as bad:
        return str(bad)
    return None


# -- real files ----------------------------------------------------------------------------------------------------------


def _write(folder: Path, blocks: Sequence[list[bytes]]) -> str:
    """A node's log, several segments of it; its directory."""
    files, directory = RealFiles(), str(folder / "node")
    Log.create(files, directory, Identity.fresh(), segment_bytes=256 << 10, segments=32, reserve_bytes=64 << 10)
    log, feed = Log.open(files, directory), Feed()
    log.start(feed, threads=1, seal_after_s=60, sync="off")  # nobody cuts the power here
    for block in blocks:
        feed.arrived.clear()
        feed.blocks.append(block)
        if not log.run_turn():
            log.kick()
        assert feed.arrived.wait(PATIENCE_S)
    log.close()
    return directory


def _late(batches: int) -> list[list[bytes]]:
    """A follower's log: 2 MB of partition 1 before anything of partition 0, then both side by side."""
    ahead = [[batch(1, n, ticks(10 * n, 8, 1), filler=400)] for n in range(1, batches + 1)]
    caught_up = [[batch(0, n, ticks(10 * n, 8, 0), filler=400)] for n in range(1, batches + 1)]
    together = [
        [batch(p, n, ticks(10 * n, 8, p), filler=400) for p in (0, 1)] for n in range(batches + 1, batches + batches // 4)
    ]  # fmt: skip
    return [*ahead, *caught_up, *together]


@pytest.mark.slow
def test_stream_that_was_written_late_gets_a_cursor_of_its_own(tmp_path: Path) -> None:
    """Skew of many windows is legal: the order is right, the window is kept, and the second cursor is given up again."""
    batches, window = 400, 200_000
    source = open_source(RealFiles(), _write(tmp_path, _late(batches)))
    last = batches + batches // 4 - 1
    found = scan(source, {0: 0, 1: 0}, {}, from_block=source.first_blocks[0])
    streams = [MergeStream(p, 0, 0, last, of.skips, tuple(of.voids)) for p, of in found.streams.items()]
    logs = [ChosenLog("node", source, source.first_blocks[0])]
    assert streams == streams_of(logs, {0: (0, 0, last), 1: (0, 0, last)})
    merge = Merge(logs, streams, window_bytes_max=window)
    rows = [row for chunk in merge.chunks() for row in _rows_of(chunk)]
    assert rows == sorted((t, p, n, at) for p in (0, 1) for n in range(1, last + 1) for at, t in enumerate(ticks(10 * n, 8, p)))
    assert window // 4 < merge.held_bytes_max <= window
    assert merge.cursors_opened == 2


@pytest.mark.slow
def test_damage_names_file_partition_and_place(tmp_path: Path) -> None:
    """A changed byte in the middle: what is closed in front of it comes out in order, then file, offset and streams are told."""
    directory = _write(tmp_path, _late(120))
    source = open_source(RealFiles(), directory)
    logs = [ChosenLog(directory, source, source.first_blocks[0])]
    streams = streams_of(logs, {0: (0, 0, 120), 1: (0, 0, 120)})
    path = source.segments[len(source.segments) // 2].path
    with open(path, "r+b") as file:
        file.seek(100_000)
        changed = bytes([file.read(1)[0] ^ 1])
        file.seek(100_000)
        file.write(changed)
    found, damage = _until_damage(Merge(logs, streams, window_bytes_max=100_000))
    everything = sorted((t, p, n, at) for p in (0, 1) for n in range(1, 121) for at, t in enumerate(ticks(10 * n, 8, p)))
    assert found == everything[: len(found)]
    assert found
    assert path in str(damage)
    assert "at offset" in str(damage)
    assert directory == damage.log
    assert 0 in damage.waiting
    assert damage.exit_code == 10
