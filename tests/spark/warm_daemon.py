"""What Spark starts to fork its Pythons from, with what they import: each of them would take half a second for it.

Tests make many: a task that fails ends its Python, and so does a plan that is refused.
"""

from __future__ import annotations

import importlib
import sys

from pyspark.daemon import manager

NEEDED = {
    "pyspark.worker": ("pandas", "pyarrow.parquet", "replay.spark.rebuildtask", "replay.spark.backfilltask", "replay.spark.rows"),
    "pyspark.sql.worker.plan_data_source_read": ("pandas", "pyarrow.parquet", "replay.spark.state", "replay.spark.tables"),
}

if __name__ == "__main__":
    for module in ("replay.spark.source", *NEEDED.get(sys.argv[1], ())):
        importlib.import_module(module)
    manager()
