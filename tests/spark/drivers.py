"""Programs that a user might start with a cluster, as texts: nothing of them is importable on its executors."""

from __future__ import annotations

FOREIGN = '''
"""A session that its owner made: what executors have, before and after shipping; then table, stream and back-fills."""
import importlib, json, sys
from pathlib import Path
from pyspark.sql import SparkSession

master, node, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
told = {}


def where(batches):
    import pyarrow
    for _ in batches:
        try:
            import replay
            found = replay.__file__
        except ImportError as error:
            found = str(error)
        yield pyarrow.RecordBatch.from_pydict({"found": [found]})


def ask():
    return sorted({row.found for row in spark.range(0, 4, 1, 4).mapInArrow(where, "found string").collect()})


import replay.spark
told["before"] = ask()
told["version"] = replay.spark.ship(spark)
replay.spark.ship(spark)
replay.spark.session()
told["after"] = ask()

replay.spark.register(spark)
calls = spark.read.format("cmdlog").load(node)
told["scan"] = [list(row) for row in calls.groupBy("partition_id").count().orderBy("partition_id").collect()]
query = (
    spark.readStream.format("cmdlog").option("maxTxnsPerTrigger", 8_000).load(node).writeStream.format("parquet")
    .option("checkpointLocation", f"file://{folder}/checkpoint").trigger(availableNow=True).start(f"file://{folder}/stream")
)
query.awaitTermination()
streamed = spark.read.parquet(f"file://{folder}/stream")
told["stream"] = [list(row) for row in streamed.groupBy("partition_id").count().orderBy("partition_id").collect()]
told["twice"] = streamed.count() - streamed.dropDuplicates(["partition_id", "txn_id"]).count()

sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
told["changes"] = []
for version, source in enumerate(sys.argv[4:]):
    (folder / "changed.py").write_text(Path(source).read_text())
    sys.modules.pop("changed", None)
    importlib.invalidate_caches()
    done = replay.spark.jobs.backfill(spark, node, importlib.import_module("changed").db, to=str(folder / f"what{version}"))
    state = spark.read.parquet(f"file://{folder}/what{version}/state/accounts")
    told["changes"].append([done.changes["accounts"]["changed"], state.groupBy().sum("balance").first()[0]])
told["files"] = sorted({Path(uri).name for uri in spark.sparkContext.listFiles})
print(json.dumps(told))
spark.stop()
'''

SUBMITTED = r'''
"""A job of `spark-submit --py-files`: what a plain session finds, then table, stream and rebuild as the manual has them."""
import json, re, sys
from pyspark.sql import SparkSession

node, folder = sys.argv[1], sys.argv[2]
plain = SparkSession.builder.getOrCreate()
told = {}
try:
    told["plain"] = plain.read.format("cmdlog").load(node).count()
except Exception as error:
    told["plain"] = re.search(r"\[(\w+)\]", str(error))[1]

import replay.spark
spark = replay.spark.session()
told["home"], told["master"] = replay.spark.__file__, spark.conf.get("spark.master")
told["table"] = spark.read.format("cmdlog").load(node).count()
stream = spark.readStream.format("cmdlog").load(node).writeStream.format("memory").queryName("calls")
stream.trigger(availableNow=True).start().awaitTermination()
told["stream"] = spark.table("calls").count()
told["rebuilt"] = replay.spark.jobs.rebuild(spark, node, to=f"{folder}/out").calls
told["files"] = sorted(uri.rpartition("/")[2] for uri in spark.sparkContext.listFiles)
print(json.dumps(told))
'''
