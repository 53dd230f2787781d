"""How many tasks Spark runs in parallel, for planning a read.

One rule: a file carries the number. Spark plans a read of a Python source in a process that does not know the session, and a
cluster's executors register after the session has started; so the session states the number in a file whenever it is prepared,
and the planner's environment names that file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from replay.spark.base.executor_zip import PATH, made_zip, runs_here
from replay.spark.base.scratch import make_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE: Final = "CMDLOG_SPARK_PARALLELISM"  # of the planner's environment
SETTING: Final = "spark.cmdlog.parallelism"  # of the session; both name the file
FILE: Final = "parallelism"


def parallelism() -> int:
    """That of the session which this process plans for; 1 where none has stated it."""
    try:
        return max(1, int(Path(os.environ[VARIABLE]).read_bytes()))
    except (KeyError, OSError, ValueError):
        return 1


def parallelism_of(spark: SparkSession) -> int:
    """That of a session at hand; 1 over Spark Connect, which does not know it."""
    context = _context(spark)
    return max(1, int(context.defaultParallelism)) if context is not None else 1


def state_parallelism(spark: SparkSession) -> None:
    """Writes `defaultParallelism` down, where the session has a file for it."""
    path = spark.conf.get(SETTING, "")
    if path:
        temporary = f"{path}.{os.getpid()}.tmp"
        Path(temporary).write_text(str(parallelism_of(spark)))
        os.replace(temporary, path)


@contextlib.contextmanager
def planners_told(spark: SparkSession) -> Iterator[None]:
    """What is registered within it is planned with the session's number, and finds the zip in the driver.

    Spark's planner of streams has no shipped files. Over Spark Connect the planners are the server's, and nothing is stated.
    """
    context = _context(spark)
    if context is None:
        yield
        return
    path = spark.conf.get(SETTING, "") or os.path.join(make_scratch(), FILE)
    spark.conf.set(SETTING, path)
    state_parallelism(spark)
    environment: dict[str, str] = context.environment
    before = environment.get(PATH)
    environment[VARIABLE] = path
    if not runs_here(spark):
        environment[PATH] = os.pathsep.join([made_zip(), before] if before else [made_zip()])
    try:
        yield
    finally:
        del environment[VARIABLE]
        environment.pop(PATH, None)
        if before is not None:
            environment[PATH] = before


def _context(spark: SparkSession) -> Any:
    try:
        return spark.sparkContext
    except Exception:  # noqa: BLE001 - of Spark Connect, which has none; its errors differ by version
        return None
