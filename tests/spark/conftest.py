"""One Spark session for all tests of this folder; `tests/conftest.py` sends the whole folder to one worker process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmdlog.testing import Server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores where a task may fail three times. Tests that use it are slow, the first one by its start."""
    from replay.spark import session

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")  # of a store that a test starts; a session's Pythons have the environment of its start
        running = session(
            "tests",
            master="local[2,4]",
            scratch=str(tmp_path_factory.mktemp("spark")),
            tuning="start",
            conf={
                "spark.python.daemon.module": "tests.spark.warm_daemon",  # half of the wall time of tests whose tasks fail
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.codegen.wholeStage": "false",  # compiling code for a hundred rows is a fifth of the CPU of these tests
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
        )
    yield running
    with contextlib.suppress(Exception):
        running.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`cmdlog serve` of an application that counts, and also misbehaves."""
    from cmdlog.testing import Server

    running = Server("tests.node.apps.faulty:db", tmp_path_factory.mktemp("server"), partitions=2, key_window_s=3600)
    try:
        running.start()
        yield running
    finally:
        running.close()
