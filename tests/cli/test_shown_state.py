"""What a demo compares: the tables of a stopped node, and answers over HTTP."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import cmdlog
from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.clients import Http
from cmdlog.cli.demo.shown_state import ShownState, table_rows
from procedures.samples import bank
from tests.client.scripted import ScriptedServer, Step, http


@pytest.mark.slow
def test_rows_of_every_table_but_the_position(tmp_path: Path) -> None:
    """Keys count as well: one more call with a key is another table."""
    with cmdlog.open(str(tmp_path), bank.db, partitions=2) as node:
        node.call("open_account", branch=1, customer=1, savings=5, checking=5, idempotency_key="one")
    first = table_rows(tmp_path, 2)
    assert {partition for partition, _ in first} == {0, 1}
    assert sum(rows for (_, table), (rows, _) in first.items() if table == "accounts") == 1
    with cmdlog.open(str(tmp_path), bank.db, partitions=2) as node:
        node.call("deposit_checking", branch=1, customer=1, amount=0, idempotency_key="two")
    second = table_rows(tmp_path, 2)
    assert first.keys() == second.keys()
    changed = {table for (partition, table) in first if first[partition, table] != second[partition, table]}
    assert changed == {"_cmdlog_keys"}


def test_shown_state_asks_by_query_and_procedure() -> None:
    """Both in the server's own words; what is no answer is an error."""
    replies = ({"rows": [[1, 2]]}, {"result": [[3, 4]]})
    steps = [Step("body read", reply=http(200, orjson.dumps(reply))) for reply in replies]
    with ScriptedServer([*steps, Step("body read", reply=http(503, b"{}"))]) as server, Http() as connection:
        shown = ShownState(connection, server.url)
        assert shown.rows("SELECT ?", (1,)) == [[1, 2]]
        assert shown.call("total") == [[3, 4]]
        with pytest.raises(CommandFailed, match="503"):
            shown.call("total")
    assert [request.path for request in server.requests] == ["/v1/query", "/v1/procedures/total", "/v1/procedures/total"]
    assert orjson.loads(server.requests[0].body) == {"sql": "SELECT ?", "params": [1]}
