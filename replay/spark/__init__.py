"""The command log on Spark: a session, the log as a table. PySpark lives here and nowhere else."""

from replay.spark.session import session

__all__ = ["session"]
