"""The log as a stream of a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.reading import made, read, txns
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
WAIT_S = int(PATIENCE_S)


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
        run(spark, rig.directory, sink, tmp_path / "checkpoint", maxTxnsPerTrigger="13")
    run(spark, rig.directory, sink, tmp_path / "checkpoint", maxTxnsPerTrigger="13")
    assert sink.txns == txns(read(rig.directory))
    assert max(sink.sizes) <= 13
    assert len(sink.sizes) >= 3
    rig.restart()
    rig.deposits(4)
    rig.close()
    run(spark, rig.directory, sink, tmp_path / "checkpoint")
    assert sink.txns == txns(read(rig.directory))
    assert sink.sizes[-1] == 12  # without a limit, all of it at once
