"""The merge: every invocation once, in TxnId order, whatever way the logs interleave their streams, in bounded memory."""

from __future__ import annotations

import random

import numpy as np

from replay.chunk import Chunk
from replay.cursors import HELD_OVERHEAD_BYTES, ChosenLog
from replay.merge import Controls, Merge, Order, streams_of
from tests.replay.streamkit import Row, World, make_world

SEEDS = 150


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
    """One by one, each call has the parameters, procedure and key that were written at its place."""
    for seed in range(SEEDS // 3):
        world = make_world(seed)
        calls = list(_merge_of(world).invocations())
        assert [(call.txn_id, call.partition, call.entry, call.position) for call in calls] == world.rows()
        for call in calls:
            assert call.params[:3] == [call.partition, call.entry, call.position]
            assert call.procedure == (call.entry + call.position) % 7
            assert call.key in (None, bytes(16), bytes([call.position + 1]) * 16)


def test_control_entries_stand_between_the_calls_of_their_partition() -> None:
    """Passed on, every entry without calls comes once, in index order, behind all earlier and in front of all later calls."""
    for seed in range(SEEDS):
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
        merge = _merge_of(world, order=Order.PER_PARTITION, window_bytes_max=1000)
        found: list[Row] = []
        for chunk in merge.chunks():
            assert len(np.unique(chunk.partitions)) <= 1
            found += _rows_of(chunk)
        for partition in world.wanted:
            assert [row for row in found if row[1] == partition] == [row for row in world.rows() if row[1] == partition]
        assert len(found) == len(world.rows())
        assert merge.cursors_opened == len(world.logs)
