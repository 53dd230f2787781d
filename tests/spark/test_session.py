"""The session of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_session_has_the_settings_of_the_command_log(spark: SparkSession) -> None:
    """UTC, loopback, no web page, a retry for failed tasks, and this very interpreter in the workers."""
    conf = spark.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.master") == "local[2,4]"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(1).mapInArrow(_interpreter, "path string").collect()[0].path == sys.executable


def test_environment_of_this_process_stays(spark: SparkSession) -> None:
    """Only the JVM gets our settings: what else this process starts must not inherit them."""
    assert spark.version.startswith("4.")
    assert not {"SPARK_CONF_DIR", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"} & os.environ.keys()
    assert "discover" not in os.environ.get("PYTHONPATH", "")


def test_running_session_is_used(spark: SparkSession) -> None:
    """A second call gives the session that runs: a process has one JVM."""
    from replay.spark import session

    assert session("other") is spark


def _interpreter(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})
