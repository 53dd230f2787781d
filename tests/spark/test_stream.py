"""The log as a stream of a real Spark session."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.replay.archiverig import ArchiveRig
from tests.spark.reading import made, read, txns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
WAIT_S = 60


class Sink:
    """Takes micro-batches; breaks once in the middle of a given one, after Spark has written its offsets."""

    def __init__(self, break_at: int = -1) -> None:
        self.batches: dict[int, list[int]] = {}
        self.break_at = break_at

    def take(self, frame: DataFrame, number: int) -> None:
        """One micro-batch; the same number again replaces it, as an exactly-once sink does."""
        self.batches[number] = sorted(row.txn_id for row in frame.select("txn_id").collect())
        if number == self.break_at:
            self.break_at = -1
            raise RuntimeError("the sink broke")

    @property
    def sizes(self) -> list[int]:
        """Rows per micro-batch."""
        return [len(self.batches[number]) for number in sorted(self.batches)]

    @property
    def txns(self) -> list[int]:
        """Everything, ascending; a transaction that was given twice occurs twice."""
        return sorted(txn for batch in self.batches.values() for txn in batch)


def run(spark: SparkSession, directory: str, sink: Sink, checkpoint: Path, **options: str) -> None:
    """One run over what is there now."""
    frame = spark.readStream.format("cmdlog").options(**options).load(directory)
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(WAIT_S)


def test_each_call_is_given_once_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that breaks in the middle, a restart, more calls, another restart: every call once, within the limit per trigger."""
    rig = made(tmp_path, 10)
    sink = Sink(break_at=1)
    with pytest.raises(StreamingQueryException, match="the sink broke"):
        run(spark, rig.directory, sink, tmp_path / "checkpoint", maxTxnsPerTrigger="10")
    run(spark, rig.directory, sink, tmp_path / "checkpoint", maxTxnsPerTrigger="10")
    assert sink.txns == txns(read(rig.directory))
    assert max(sink.sizes) <= 10
    assert len(sink.sizes) >= 4
    rig.restart()
    rig.deposits(4)
    rig.close()
    run(spark, rig.directory, sink, tmp_path / "checkpoint")
    assert sink.txns == txns(read(rig.directory))
    assert sink.sizes[-1] == 12  # without a limit, all of it at once


def test_limit_smaller_than_a_batch_of_the_log_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """A logged batch is given in parts when the limit asks for it."""
    rig = made(tmp_path, 2)
    sink = Sink()
    run(spark, rig.directory, sink, tmp_path / "checkpoint", maxTxnsPerTrigger="2")
    assert sink.txns == txns(read(rig.directory))
    assert max(sink.sizes) <= 2


def test_log_truncated_behind_the_stream_is_data_loss(spark: SparkSession, tmp_path: Path) -> None:
    """What the node let go of before the stream came to it is said to be lost; with failOnDataLoss=false the stream goes on."""
    rig = ArchiveRig(tmp_path)
    rig.deposits(6)
    rig.stop()
    sink = Sink()
    run(spark, rig.directory, sink, tmp_path / "checkpoint")
    assert sink.txns == sorted(txn for txn, _ in rig.history)
    rig.restart()
    rig.rotate(6)
    rig.close()
    shutil.rmtree(os.path.join(rig.directory, "archive"))
    with pytest.raises((StreamingQueryException, PySparkException), match="what was before is truncated"):
        run(spark, rig.directory, sink, tmp_path / "checkpoint")
    run(spark, rig.directory, sink, tmp_path / "checkpoint", failOnDataLoss="false")
    assert len(sink.txns) == len(set(sink.txns)) < len(rig.history)
    assert sink.txns[-1] == max(txn for txn, _ in rig.history)


def test_stream_from_the_latest_gives_only_what_follows(spark: SparkSession, tmp_path: Path) -> None:
    """startingTxn=latest leaves out what was there at the first start."""
    rig = made(tmp_path, 4)
    sink = Sink()
    run(spark, rig.directory, sink, tmp_path / "checkpoint", startingTxn="latest")
    assert sink.txns == []
    before = len(rig.history)
    rig.restart()
    rig.deposits(2)
    rig.close()
    run(spark, rig.directory, sink, tmp_path / "checkpoint", startingTxn="latest")
    assert sink.txns == sorted(txn for txn, _ in rig.history[before:])
