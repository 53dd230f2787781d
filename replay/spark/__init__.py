"""The command log on Spark: a session, the log as a table, rebuilt tables. PySpark lives here and nowhere else."""

from replay.spark.backfill import backfill
from replay.spark.rebuild import rebuild
from replay.spark.session import session

__all__ = ["backfill", "rebuild", "session"]
