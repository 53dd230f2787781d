"""The same calls with the steps in C and without them: sites of both kinds in one process, and what there is to compare."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from procedures import Database, Transaction
from procedures.execution.context import PythonRunner
from procedures.native import accelerator
from procedures.statements.prepared import NamesDiffer
from tests.procedures.sites import Call, Site

needs_accelerator = pytest.mark.skipif(accelerator is None, reason="no C compiler")
OF_APSW: Final = ("result", "extendedresult", "error_offset")


class PythonTransaction(Transaction):
    """A `tx` whose statements are run by Python."""

    __slots__ = ()
    execute: Any = PythonRunner.execute


PythonTransaction.__name__ = Transaction.__name__  # as some messages say


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Whatever is made and prepared meanwhile does without the steps in C, as where no compiler has built them."""
    with (
        patch("procedures.native.accelerator", None),
        patch("procedures.statements.prepared.accelerator", None),
        patch("procedures.storage.row_digest.accelerator", None),
        patch("procedures.storage.row_digest._Touched", patched_touched()),
        patch("procedures.execution.catalog.Transaction", PythonTransaction),
    ):
        yield


def patched_touched() -> Any:
    """The class in Python, whatever the module uses."""
    from procedures.storage.row_digest import TouchedRows

    return TouchedRows


class BothWays:
    """Two sites of one application: what is done on one is done on the other, and compared."""

    def __init__(self, folder: Path, make_db: Callable[[list[Any]], Database], **settings: Any) -> None:
        """`make_db`: the application, whose procedures note what they see in the list that they are given."""
        self.seen: tuple[list[Any], list[Any]] = ([], [])
        self.native = Site(folder / "native.db", make_db(self.seen[0]), **settings)
        with in_python():
            self.python = Site(folder / "python.db", make_db(self.seen[1]), **settings)

    def apply(self, *calls: Call, **settings: Any) -> Any:
        """What both say of a batch, which is the same."""
        native = _answers(self.native, calls, settings)
        with in_python():
            python = _answers(self.python, calls, settings)
        assert native == python
        self.compare_seen()
        return native

    def read(self, *calls: Call) -> Any:
        """What both say of read-only calls, which is the same."""
        native = _read_answers(self.native, calls)
        with in_python():
            python = _read_answers(self.python, calls)
        assert native == python
        self.compare_seen()
        return native

    def compare_seen(self) -> None:
        """Procedures saw the same; what they saw first that differs is shown."""
        differing = [pair for pair in itertools.zip_longest(*self.seen) if pair[0] != pair[1]]
        if differing:
            raise AssertionError(f"in C: {differing[0][0]}\nin Python: {differing[0][1]}")

    def compare_files(self) -> None:
        """All tables hold the same."""
        assert _stored(self.native) == _stored(self.python)

    def close(self) -> None:
        self.native.close()
        with in_python():
            self.python.close()


def _answers(site: Site, calls: tuple[Call, ...], settings: dict[str, Any]) -> Any:
    applied = site.apply(*calls, **settings)
    return applied.statuses, applied.bodies, applied.result_hashes, applied.rows_digest, site.executor.changed_rows()


def _stored(site: Site) -> Any:
    """Every value with its type, as bytes: a text need not be UTF-8."""
    column = """'typeof("' || c.name || '"), CAST("' || c.name || '" AS BLOB)'"""
    tables = site.rows(
        f"SELECT t.name, group_concat({column}) FROM sqlite_master AS t, pragma_table_info(t.name) AS c "  # noqa: S608
        "WHERE t.type = 'table' GROUP BY t.name ORDER BY t.name"
    )
    return [(name, sorted(site.rows(f'SELECT {columns} FROM "{name}"'), key=repr)) for name, columns in tables]  # noqa: S608


def _read_answers(site: Site, calls: tuple[Call, ...]) -> Any:
    given = [(site.numbers[name], site.db.procedures[name].bind(params)) for name, params in calls]
    return site.executor.read(given, catalog=1)


def described(error: BaseException | None) -> Any:
    """Of an exception what a procedure can see, with what it was raised from and while handling."""
    if error is None or isinstance(error, NamesDiffer):  # of which no procedure sees how often it was raised
        return error and NamesDiffer
    known = {name: getattr(error, name) for name in OF_APSW if hasattr(error, name)}
    context = None if error.__suppress_context__ and error.__cause__ is None else error.__context__
    return type(error), str(error), known, described(error.__cause__), described(context)


def outcome(function: Callable[[], Any]) -> Any:
    """What it returns, or how it fails."""
    try:
        found = function()
    except Exception as error:  # noqa: BLE001 - any exception of one way is to be that of the other
        return described(error)
    shown = repr(list(found)) if isinstance(found, list) else repr(found) if not hasattr(found, "rowcount") else ""
    return type(found).__name__, shown, getattr(found, "rowcount", None)


@contextlib.contextmanager
def both_ways(folder: Path, make_db: Callable[[list[Any]], Database], **settings: Any) -> Iterator[BothWays]:
    """Sites of both kinds, closed at the end."""
    sites = BothWays(folder, make_db, **settings)
    try:
        yield sites
    finally:
        sites.close()
