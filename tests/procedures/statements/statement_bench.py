"""Runs any function as a procedure, with some tables at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Column,
    Integer,
    String,
)

from procedures import Database, Transaction
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]


class StatementBench:
    """Runs any function as a procedure, with some tables at hand."""

    def __init__(self, make_site: MakeSite) -> None:
        self.db = Database("bench")
        self.rows = self.db.table(
            "rows", Column("id", Integer, primary_key=True), Column("name", String), Column("other", Integer), partition_by="id"
        )
        self.shared = self.db.table("shared", Column("id", Integer, primary_key=True), replicated=True)
        self.body: Callable[[Transaction], Any] = lambda tx: None

        def body(tx: Transaction, key: int) -> Any:
            return self.body(tx)

        self.db.procedure(name="single", partition_by="key")(body)
        self.db.procedure(name="everywhere", partition_by=None)(body)
        self.db.procedure(name="look", partition_by="key", read_only=True)(body)
        self.site = make_site(self.db)

    def run(self, body: Callable[[Transaction], Any], name: str = "single") -> tuple[int, Any]:
        """(status, body) of a call that runs `body`."""
        self.body = body
        return self.site.call(name, key=1)
