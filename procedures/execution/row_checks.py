"""What each written row must hold, beside what SQLite itself checks: the limits that the types of its columns state.

One rule: it is decided where every change is seen, in SQLite's pre-update hook, however the row was written (bound values,
INSERT … SELECT, SQL text, an upsert, a cascade). SQLite has changed the row by then, so a refused row ends its call, even if
the procedure catches the error. A value that an UPDATE leaves as it was is not judged again: it may be older than the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import apsw

from procedures.declaration.column_types import limit_of
from procedures.declaration.database import Database, TableInfo
from procedures.declaration.dialect import DIALECT
from procedures.errors import RowRefused

Row = tuple[Any, ...]
CheckRow = Callable[[Row | None, Row], None]  # row before, row after; raises RowRefused
HOOK: Final = "row-checks"
_SHOWN: Final = 60  # characters of a value


def row_checks(database: Database, refused: list[RowRefused]) -> dict[str, CheckRow]:
    """Table → check of its rows, which also adds to `refused` what it raises.

    Tables without one are left out, and so are databases of before exact decimals: their calls replay as they ran.
    """
    if database.dialect is not DIALECT:
        return {}
    checks = {name: _limits_check(info, refused) for name, info in database.tables.items()}
    return {name: check for name, check in checks.items() if check is not None}


def _limits_check(info: TableInfo, refused: list[RowRefused]) -> CheckRow | None:
    table = info.table
    found = [(at, column.name, limit_of(column.type)) for at, column in enumerate(table.columns)]
    limits = [(at, name, *limit) for at, name, limit in found if limit is not None]
    if not limits:
        return None

    def check_limits(old: Row | None, new: Row) -> None:
        for at, name, fits, says in limits:
            value = new[at]
            if value is not None and not fits(value) and (old is None or old[at] != value):
                refused.append(RowRefused(f"column {table.name}.{name}: {says}, not {shown_value(value)}"))
                raise refused[0]

    return check_limits


def shown_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(value)})"


class RowChecker:
    """Judges the changes on one connection where no digest looks at them. Owned by the executor.

    Attributes:
        checks: those of the running catalog.
    """

    __slots__ = ("checks",)

    def __init__(self, connection: apsw.Connection) -> None:
        self.checks: Mapping[str, CheckRow] = {}
        connection.preupdate_hook(self._note_update, id=HOOK)

    def _note_update(self, update: apsw.PreUpdate) -> None:
        check = self.checks.get(update.table_name)
        if check is None:
            return
        try:
            new, old = update.new, update.old
        except UnicodeDecodeError:
            return  # as where digests are on: whether they are must not decide what a call answers
        if new is not None:
            check(old, new)
