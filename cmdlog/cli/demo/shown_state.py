"""What a demo's server shows over HTTP, and what the directory of a node holds when it is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import orjson

from cmdlog.cli.demo.clients import Http
from cmdlog.cli.demo.proof import Rows

POSITION_TABLE: Final = "_cmdlog_meta"  # how far a state has come; entries without calls count there, too


class ShownState:
    """What a server shows over HTTP; see `cmdlog.cli.demo.proof.View`."""

    def __init__(self, http: Http, url: str) -> None:
        self._http, self._url = http, url

    def rows(self, sql: str, params: Sequence[Any]) -> list[Sequence[Any]]:
        body = orjson.dumps({"sql": sql, "params": params})
        rows: list[Sequence[Any]] = self._http.read(self._url, "POST", "/v1/query", body=body)["rows"]
        return rows

    def call(self, procedure: str) -> Any:
        return self._http.read(self._url, "POST", f"/v1/procedures/{procedure}", body=b"{}")["result"]


def table_rows(directory: Path, partitions: int) -> Rows:
    """Rows and digest of every table of a node that is stopped, idempotency keys among them."""
    from procedures.storage.state import open_reader
    from replay.state.trust import state_path
    from snapshot.table_digest import table_digests

    found = {}
    for partition in range(partitions):
        connection, _ = open_reader(state_path(str(directory), partition))
        with closing(connection):
            tables = table_digests(connection)
        found.update({(partition, name): (it.rows, it.sha256) for name, it in tables.items() if name != POSITION_TABLE})
    return found
