"""What SQLite says about a text that a procedure is to run, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apsw

from procedures.errors import StatementRefused
from procedures.guard.authorizer import Authorizer, Mode, TablesSeen


@dataclass(frozen=True, slots=True)
class Probe:
    """What SQLite says about a text without running it."""

    columns: tuple[str, ...]
    parameters: tuple[str, ...]  # in the order of binding
    readonly: bool
    seen: TablesSeen


def probe(connection: apsw.Connection, guard: Authorizer, sql: str) -> Probe:
    """Prepares a text under the authorizer and looks at it; nothing runs.

    It is prepared again, past APSW's cache: a text that the framework has run itself is judged like any other.

    Raises:
        StatementRefused: the authorizer denies it.
        apsw.SQLError: SQLite cannot compile it.
    """
    found: dict[str, Any] = {}

    def inspect_statement(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
        found["columns"] = tuple(column[0] for column in cursor.get_description())
        found["parameters"] = cursor.bindings_names
        found["readonly"] = cursor.is_readonly
        return False

    cursor = connection.cursor()
    cursor.exec_trace = inspect_statement
    before, guard.mode = guard.mode, Mode.PROCEDURE
    seen = guard.watch()
    try:
        cursor.execute(sql, AnyBindings(), can_cache=False)
    except apsw.ExecTraceAbort:
        pass
    except apsw.AuthError:
        raise StatementRefused(f"{guard.denied}: {sql}") from None
    finally:
        guard.mode = before
        guard.seen = None
        cursor.close()
    return Probe(found["columns"], tuple(name or "" for name in found["parameters"]), found["readonly"], seen)


class AnyBindings(dict[str, None]):
    """Bindings for a statement that will not run: every name is there."""

    def __missing__(self, _name: str) -> None:
        return None
