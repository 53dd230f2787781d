"""Offsets of the stream: what Spark would ask for, asked without Spark."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import orjson
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from replay.spark.base.options import BadOption, parse_options
from replay.spark.datasource.stream import CallStream
from replay.spark.datasource.stream_history import Reached
from replay.spark.reading.read_task import DataLoss
from tests.replay.archiverig import ArchiveRig
from tests.replay.historycluster import Cluster
from tests.spark.reading import made, read, txns


def stream_of(*directories: str, **options: str) -> CallStream:
    """A stream reader, as Spark makes one at each start."""
    return CallStream(parse_options({"paths": orjson.dumps(directories).decode(), **options}), ["txn_id"])


def given(stream: CallStream, start: dict[str, str], end: dict[str, str]) -> list[int]:
    """TxnIds of one micro-batch."""
    return [
        row["txn_id"]
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def drained(stream: CallStream, limits: random.Random, most: int, offset: dict[str, str]) -> tuple[list[int], dict[str, str]]:
    """Everything, in micro-batches of random limits up to `most`; each is read twice, as after a crash."""
    found: list[int] = []
    while True:
        limit = limits.randint(1, most)
        end = stream.latestOffset(offset, ReadMaxRows(limit))
        if end == offset:
            return found, offset
        rows = given(stream, offset, end)
        assert 0 < len(rows) <= limit
        assert given(stream, offset, end) == rows
        found, offset = found + rows, end


@pytest.mark.parametrize("most", [1, 2, 7, 50])
def test_any_limit_gives_each_call_once(tmp_path: Path, most: int) -> None:
    """Limits below, at and above the size of a logged batch, whose ids do not follow each other tick by tick."""
    rig = made(tmp_path, 8)
    found, offset = drained(stream_of(rig.directory), random.Random(most), most, {})
    assert sorted(found) == txns(read(rig.directory))
    rig.restart()
    rig.deposits(3)
    rig.close()
    more, _ = drained(stream_of(rig.directory), random.Random(most), most, offset)
    assert sorted(found + more) == sorted(txn for txn, _ in rig.history)


def test_stream_asks_for_names_when_it_starts_and_not_later(tmp_path: Path) -> None:
    """A misspelt procedure would be an empty stream for ever; one that is known and has no calls yet is waited for."""
    rig = made(tmp_path, 3)
    for latest in ({}, {"startingTxn": "latest"}):
        with pytest.raises(BadOption, match="no code in the log has depositt; did you mean deposit"):
            stream_of(rig.directory, procedures="depositt", **latest).latestOffset({}, ReadAllAvailable())
    with pytest.raises(BadOption, match="endingTxn: there is no partition 7"):
        stream_of(rig.directory, endingTxn='{"7": 5}').latestOffset({}, ReadAllAvailable())
    stream = stream_of(rig.directory, procedures="mirror")
    end = stream.latestOffset({}, ReadAllAvailable())
    assert given(stream, {}, end) == []


def test_superseded_entries_move_no_offset(tmp_path: Path) -> None:
    """What a deposed leader logged is neither given nor counted, and no offset names it."""
    cluster = Cluster(tmp_path / "c")
    cluster.deposits(0)
    cluster.spread(0)
    stale = cluster.deposits(0, by=1)
    assert stale is not None
    assert cluster.elect(0, 2, [2, 3])
    cluster.deposits(0)
    cluster.spread(0)
    directories = cluster.finish()
    for directory in directories:
        found, _ = drained(stream_of(directory), random.Random(1), 2, {})
        assert sorted(found) == txns(read(directory))
        assert not {call[0] for call in stale.calls} & set(found)


def test_no_limit_gives_all_at_once(tmp_path: Path) -> None:
    """ReadAllAvailable, the default without maxTxnsPerTrigger, ends where the log does."""
    rig = made(tmp_path, 5)
    stream = stream_of(rig.directory)
    assert isinstance(stream.getDefaultReadLimit(), ReadAllAvailable)
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    assert sorted(given(stream, {}, end)) == txns(read(rig.directory))
    assert end == stream.reportLatestOffset()


def test_available_now_ends_where_the_log_stood(tmp_path: Path) -> None:
    """What the node writes after the start of such a run is left to the next one."""
    rig = made(tmp_path, 5)
    before = txns(read(rig.directory))
    stream = stream_of(rig.directory, maxTxnsPerTrigger="4")
    stream.prepareForTriggerAvailableNow()
    rig.restart()
    rig.deposits(4)
    rig.close()
    assert sorted(drained(stream, random.Random(2), 4, {})[0]) == before


def test_latest_gives_only_what_follows(tmp_path: Path) -> None:
    """startingTxn=latest leaves out what was there at the first start; a start of our own begins at the bound."""
    rig = made(tmp_path, 4)
    start = stream_of(rig.directory, startingTxn="latest").initialOffset()
    before = len(rig.history)
    rig.restart()
    rig.deposits(2)
    rig.close()
    every = sorted(txn for txn, _ in rig.history)
    assert sorted(drained(stream_of(rig.directory), random.Random(3), 9, start)[0]) == every[before:]
    bound = stream_of(rig.directory, startingTxn=str(every[7]))
    assert sorted(drained(bound, random.Random(3), 9, bound.initialOffset())[0]) == every[7:]


def test_log_truncated_behind_the_stream_is_data_loss(tmp_path: Path) -> None:
    """What the node let go of before the stream came to it is said to be lost; failOnDataLoss=false goes on without it."""
    rig = ArchiveRig(tmp_path)
    rig.deposits(6)
    rig.stop()
    found, offset = drained(stream_of(rig.directory), random.Random(4), 9, {})
    rig.restart()
    rig.rotate(6)
    rig.close()
    more, _ = drained(stream_of(rig.directory), random.Random(4), 50, offset)
    assert sorted(found + more) == sorted(txn for txn, _ in rig.history), "the archive holds what the ring let go of"
    shutil.rmtree(os.path.join(rig.directory, "archive"))
    with pytest.raises(DataLoss, match="what came before was truncated"):
        stream_of(rig.directory).latestOffset(offset, ReadAllAvailable())
    left, _ = drained(stream_of(rig.directory, failOnDataLoss="false"), random.Random(4), 50, offset)
    assert set(left) < set(more)
    assert max(left) == max(more)


def stream_of_idle_partition(folder: Path) -> tuple[CallStream, dict[str, str]]:
    """Of partition 1, which stays idle after the offset that comes with it, while the other one uses the ring up."""
    rig = ArchiveRig(folder)
    rig.close()
    _, offset = drained(stream_of(rig.directory), random.Random(5), 9, {})
    rig.restart()
    for _ in range(6):
        for _ in range(12):
            rig.batch(0, [(2, [0, 1])])
        rig.snapshots_of_all()
        rig.settle()
    rig.close()
    shutil.rmtree(os.path.join(rig.directory, "archive"))
    return stream_of(rig.directory, partitions="1"), offset


def test_idle_partition_is_no_data_loss(tmp_path: Path) -> None:
    """A partition that stays idle while another uses the ring up has lost nothing, though its log begins behind its offset."""
    stream, offset = stream_of_idle_partition(tmp_path)
    assert stream.latestOffset(offset, ReadAllAvailable()) == offset
    assert Reached.of(offset["1"]).txn > 0
