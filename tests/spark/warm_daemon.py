"""What Spark starts to fork its Pythons from, with what they import: each of them would take half a second for it.

Tests make many: a task that fails ends its Python, and so does a plan that is refused.
"""

from __future__ import annotations

import importlib
import sys

from pyspark.daemon import manager

NEEDED = {
    "pyspark.worker": (
        "pandas",
        "pyarrow.parquet",
        "replay.spark.jobs.rebuild_task",
        "replay.spark.jobs.backfill_task",
        "replay.spark.reading.arrow_rows",
    ),
    "pyspark.sql.worker.plan_data_source_read": (
        "pandas",
        "pyarrow.parquet",
        "replay.spark.datasource.state_table",
        "replay.spark.datasource.log_tables",
    ),
}

if __name__ == "__main__":
    for module in ("replay.spark.datasource.source", *NEEDED.get(sys.argv[1], ())):
        importlib.import_module(module)
    manager()
