"""The example of SPARK.md that sends the rows of a DataFrame to a server, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.client.scripted import ScriptedServer, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = 40


def test_each_row_is_executed_once_however_often_it_is_sent(spark: SparkSession) -> None:
    """A connection that dies after the first request was executed, and a second run of the job, execute nothing twice."""
    shown = (Path(__file__).parents[2] / "replay/spark/SPARK.md").read_text().partition("<!-- sending rows -->")[2]
    (source,) = re.findall(r"```python\n(.*?)```", shown, re.DOTALL)[:1]
    deposits = spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 3 AS account", "1 AS amount")
    with ScriptedServer([Step("executed", "reset", b"")]) as server:
        code = compile(source.replace("http://127.0.0.1:8080", server.url), "SPARK.md", "exec")
        for _ in range(2):
            exec(code, {"deposits": deposits, "__name__": "__main__"})  # noqa: S102 - a text of this tree
        assert server.executions == ROWS
        assert {request.path for request in server.requests} == {"/v1/batch"}
