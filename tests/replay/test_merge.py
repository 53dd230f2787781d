"""The merge: every invocation once, in TxnId order, whatever way the logs interleave their streams, in bounded memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import encode_commit_mark
from cmdlog.wal.ids import PARTITION_BITS
from cmdlog.wal.log import Log
from replay.errors import StreamDamaged
from replay.history.merge import Merge, streams_of
from replay.history.merge_stream import HELD_OVERHEAD_BYTES, MergeStream
from replay.log.scan import scan
from replay.log.source import LogSource, open_source
from tests.replay.rig import Feed
from tests.replay.streamkit import Listed, Row, batch, make_world, ticks
from tests.waiting import PATIENCE_S

SEEDS = 100


def _source(log: Listed) -> LogSource:
    return cast("LogSource", log)


def _merge(log: Listed, wanted: Mapping[int, tuple[int, int]], **settings: int) -> Merge:
    source = _source(log)
    return Merge(source, streams_of(source, 1, wanted), from_block=1, **settings)


def _blind(log: Listed, *streams: MergeStream, **settings: int) -> Merge:
    """Without a first look."""
    return Merge(_source(log), streams, from_block=1, **settings)


def _rows_of(merge: Merge) -> list[Row]:
    return [call[:4] for call in merge.invocations()]


def test_merge_gives_what_the_plain_sort_gives() -> None:
    """Random logs, with lags, idle partitions, superseded suffixes, marks and skips: the sequence is the model's, row by row."""
    for seed in range(SEEDS):
        world = make_world(seed)
        found = _rows_of(_merge(world.log, world.wanted))
        assert found == world.rows(), f"seed {seed}"


def test_window_is_kept_however_small() -> None:
    """With a window of some entries the sequence is the same, and no more is held but where one entry exceeds its share."""
    opened = 0
    for seed in range(SEEDS):
        world = make_world(seed)
        window = random.Random(seed).choice([0, 2000, 6000, 20_000])
        merge = _merge(world.log, world.wanted, window_bytes_max=window)
        found = _rows_of(merge)
        assert found == world.rows(), f"seed {seed}"
        share = window // 2 // max(1, len(world.wanted))
        largest = [max(share, size + HELD_OVERHEAD_BYTES) for size in world.entry_bytes_max()]
        assert merge.held_bytes_max <= window // 2 + sum(largest), f"seed {seed}"
        opened += merge.cursors_opened - 1
    assert opened > SEEDS / 2


def test_invocations_carry_their_parameters_and_keys() -> None:
    """One by one, each call has the parameters, procedure and name that were written at its place: a key's, or a session's."""
    named = Counter[int]()
    for seed in range(SEEDS // 3):
        world = make_world(seed)
        calls = list(_merge(world.log, world.wanted).invocations())
        assert [(call.txn_id, call.partition, call.entry, call.position) for call in calls] == world.rows()
        for call in calls:
            assert call.params[:3] == [call.partition, call.entry, call.position]
            assert call.procedure == (call.entry + call.position) % 7
            name = call.params[4]
            assert call.key == (None if name is None else bytes.fromhex(name))
            named[len(call.key or b"")] += 1
    assert min(named[0], named[16], named[24]) > 100


# -- streams that lag, idle, end -----------------------------------------------------------------------------------------


def test_idle_stream_goes_on_by_its_marks() -> None:
    """A partition without calls, whose marks say what is closed, holds nobody up: one cursor, and little is held."""
    calls = [batch(1, n, ticks(10 * n, 8, 1)) for n in range(1, 300)]
    marks = [encode_commit_mark(partition=0, term=1, commit=0, closed_txn=10 * n + 9 << PARTITION_BITS) for n in range(1, 300)]
    last = batch(0, 1, ticks(5000, 1, 0))
    blocks = [[call, mark] for call, mark in zip(calls, marks, strict=True)]
    for with_marks in (True, False):
        world = [[record for record in block if with_marks or record in calls] for block in blocks]
        merge = _merge(Listed([*world, [last]]), {0: (0, 1), 1: (0, 299)}, window_bytes_max=20_000)
        assert len(_rows_of(merge)) == 299 * 8 + 1
        assert merge.held_bytes_max <= 20_000
        assert merge.cursors_opened == (1 if with_marks else 2)


def test_second_cursor_is_given_up_when_the_first_has_caught_up() -> None:
    """Behind the skew one cursor serves all again: the long rest of the log is not read twice."""
    late, rest = 60, 2000
    ahead = [[batch(p, n, ticks(10 * n, 2, p), filler=90)] for p in (1, 0) for n in range(1, late + 1)]
    together = [[batch(p, n, ticks(10 * n, 2, p), filler=90) for p in (0, 1)] for n in range(late + 1, late + rest + 1)]
    log = Listed([*ahead, *together])
    merge = _blind(log, *(MergeStream(partition, 0, late + rest) for partition in (0, 1)), window_bytes_max=20_000)
    assert len(_rows_of(merge)) == 4 * (late + rest)
    assert merge.cursors_opened == 2
    assert log.served < 2 * (late + rest) + 3 * late


def _until_damage(merge: Merge) -> tuple[list[Row], StreamDamaged]:
    found: list[Row] = []
    try:
        for call in merge.invocations():
            found.append(call[:4])
    except StreamDamaged as damage:
        return found, damage
    raise AssertionError("nothing was damaged")


# -- what must be said ---------------------------------------------------------------------------------------------------


def test_log_that_ends_too_early_is_named_with_its_stream() -> None:
    """What was there comes out; then the error says which log, partition and index, and how much was held."""
    log = Listed([[batch(3, n, ticks(10 * n, 2, 3), filler=9) for n in range(1, 5)]], "/data/b")
    found, damage = _until_damage(_blind(log, MergeStream(3, 0, 9)))
    assert len(found) == 8
    assert damage.log == "/data/b"
    assert damage.waiting == {3: (5, 9)}
    assert "partition 3 from index 5 to 9" in str(damage)
    assert "bytes of it are buffered" in str(damage)


def test_missing_entry_is_named() -> None:
    """An index that is left out is damage, never passed over."""
    log = Listed([[batch(0, n, ticks(10 * n, 2, 0)) for n in (1, 2, 4)]])
    with pytest.raises(StreamDamaged, match="entry 4 where 3 is expected"):
        _rows_of(_blind(log, MergeStream(0, 0, 4)))


def test_transaction_that_was_closed_cannot_come_any_more() -> None:
    """A mark that an entry behind it contradicts counts for what it is worth after a first look, and is an error without one."""
    early = encode_commit_mark(partition=0, term=1, commit=0, closed_txn=99 << PARTITION_BITS)
    log = Listed([[early, batch(1, 1, ticks(10, 40, 1))], [batch(0, 1, ticks(20, 40, 0)), batch(1, 2, ticks(70, 1, 1))]])
    rows = _rows_of(_merge(log, {0: (0, 1), 1: (0, 2)}, window_bytes_max=0))
    assert rows == sorted(rows)
    assert len(rows) == 81
    with pytest.raises(StreamDamaged, match="entry 1 begins at transaction"):
        _rows_of(_blind(log, MergeStream(0, 0, 1), MergeStream(1, 0, 2), window_bytes_max=0))


@pytest.mark.parametrize("second", [24, (1 << 53) - 1])
def test_stream_that_goes_backwards_is_named(second: int) -> None:
    """TxnIds of a partition ascend by index and have 63 bits; a log where they do not is no log."""
    log = Listed([[batch(0, 1, ticks(20, 5, 0)), batch(0, 2, ticks(second, 2, 0))]])
    with pytest.raises(StreamDamaged, match="not after"):
        _rows_of(_blind(log, MergeStream(0, 0, 2)))


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
    first = source.first_blocks[0]
    streams = [MergeStream(p, 0, last, of.skips, tuple(of.voids)) for p, of in found.streams.items()]
    assert streams == streams_of(source, first, {0: (0, last), 1: (0, last)})
    merge = Merge(source, streams, from_block=first, window_bytes_max=window)
    rows = _rows_of(merge)
    assert rows == sorted((t, p, n, at) for p in (0, 1) for n in range(1, last + 1) for at, t in enumerate(ticks(10 * n, 8, p)))
    assert window // 4 < merge.held_bytes_max <= window
    assert merge.cursors_opened == 2


@pytest.mark.slow
def test_damage_names_file_partition_and_place(tmp_path: Path) -> None:
    """A changed byte in the middle: what is closed in front of it comes out in order, then file, offset and streams are told."""
    directory = _write(tmp_path, _late(120))
    source = open_source(RealFiles(), directory)
    first = source.first_blocks[0]
    streams = streams_of(source, first, {0: (0, 120), 1: (0, 120)})
    path = source.segments[len(source.segments) // 2].path
    with open(path, "r+b") as file:
        file.seek(100_000)
        changed = bytes([file.read(1)[0] ^ 1])
        file.seek(100_000)
        file.write(changed)
    found, damage = _until_damage(Merge(source, streams, from_block=first, window_bytes_max=100_000))
    everything = sorted((t, p, n, at) for p in (0, 1) for n in range(1, 121) for at, t in enumerate(ticks(10 * n, 8, p)))
    assert found == everything[: len(found)]
    assert found
    assert path in str(damage)
    assert "at offset" in str(damage)
    assert directory == damage.log
    assert 0 in damage.waiting
    assert damage.exit_code == 10
