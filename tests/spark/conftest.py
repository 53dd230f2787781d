"""One Spark session and one server for tests of this folder. `tests/conftest.py` has one process run all that use the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmdlog.testing import Server


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of a Python that has imported what Spark's need."""
    from tests.spark.warm_pythons import importing

    with importing(tmp_path_factory.mktemp("python")) as path:
        yield path


@pytest.fixture(scope="session")
def spark(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores where a task may fail three times. Tests that use it are slow, the first one by its start."""
    from replay.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", warm_python)
        running = session(
            "tests",
            master="local[2,4]",
            scratch=str(tmp_path_factory.mktemp("spark")),
            tuning="start",
            conf={
                "spark.python.task.killTimeout": "0",  # of a cancelled task's Python, after Spark has seen that it is cancelled
                "spark.sql.shuffle.partitions": "2",
                "spark.default.parallelism": "2",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.codegen.wholeStage": "false",  # compiling code for a hundred rows is a fifth of the CPU of these tests
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            },
        )
    yield running
    with suppress(Exception):
        running.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`cmdlog serve` of an application that counts, and also misbehaves. Each test counts under ids of its own."""
    from cmdlog.testing import Server

    running = Server("tests.node.apps.faulty:db", tmp_path_factory.mktemp("server"), partitions=2, key_window_s=3600)
    try:
        running.start()
        yield running
    finally:
        running.close()
