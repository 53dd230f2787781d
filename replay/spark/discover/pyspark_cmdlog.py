"""Where Spark finds `format("cmdlog")`: it imports every top module `pyspark_*` and takes its `DefaultSource`."""

from replay.spark.datasource.source import CmdlogSource as DefaultSource

__all__ = ["DefaultSource"]
