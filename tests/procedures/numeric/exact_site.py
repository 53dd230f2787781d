"""A partition on which a test runs statements over exact numbers, one call each."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from procedures import Database, Transaction
from tests.procedures.numeric.expressions import LARGE, SCALES, SMALL, db, t
from tests.procedures.sites import Site


class ExactSite:
    """Runs statements of the tests' table, or of another database."""

    def __init__(self, path: Path, database: Database) -> None:
        if "run_given" not in database.procedures:
            database.procedure(partition_by="where", name="run_given")(_run_given)
        self._site = Site(path, database)

    def run(self, statement: Any, **params: Any) -> Any:
        """Rows of a query, or how many rows a change touched. Raises what the statement raises."""
        given = _Given(statement, params)
        _CURRENT.append(given)
        try:
            self._site.call("run_given", where=1)
        finally:
            _CURRENT.clear()
        if given.error is not None:
            raise given.error
        return given.found

    def stored(self, sql: str) -> list[tuple[Any, ...]]:
        """What lies in the file."""
        return self._site.rows(sql)

    def close(self) -> None:
        self._site.close()


class _Given:
    def __init__(self, statement: Any, params: dict[str, Any]) -> None:
        self.statement, self.params = statement, params
        self.found: Any = None
        self.error: Exception | None = None


_CURRENT: list[_Given] = []


def _run_given(tx: Transaction, where: int) -> int:
    (given,) = _CURRENT
    try:
        result = tx.execute(given.statement, **given.params)
        try:
            given.found = [tuple(row) for row in result]
        except LookupError:
            given.found = result.rowcount
    except Exception as error:
        given.error = error
        raise
    return where


def open_filled(path: Path) -> ExactSite:
    """The table of `expressions` with its rows."""
    site = ExactSite(path, db)
    for row in SMALL + LARGE:
        values = [value if index in (0, 5, 6) or value is None else Decimal(str(value)) for index, value in enumerate(row)]
        site.run(insert(t).values(**dict(zip(("id", *SCALES), values, strict=True))))
    return site
