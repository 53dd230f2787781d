"""Which rows it is that SQLite refuses when a change writes a table again, or makes a unique index: it says the rule alone.

One rule: asked after a failure, when the change is taken back anyway; what it does itself goes with that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw

from procedures.declaration.columns.held_values import value_in_text
from procedures.declaration.create_text import column_parts, constraint_name, names_in_parentheses, names_of, parse_table, quoted
from procedures.declaration.schema_plan import index_table
from procedures.migration.row_fitness import shown_row
from procedures.storage.authorizer import NEW_TABLE
from procedures.storage.state import rows_of

_COPIED: Final = re.compile(r"INSERT INTO \S+ \(.*\) SELECT .* FROM \"(\w+)\"", re.DOTALL)


def explain_refusal(connection: apsw.Connection, statement: str, error: apsw.Error) -> str:
    """What SQLite said, and of which rows: table and count, and where values are shown, key and values.

    Returns:
        "" for a statement whose rows are not known.
    """
    reason = str(error).replace(NEW_TABLE, "")
    if copied := _COPIED.fullmatch(statement):
        return _explain_copy(connection, statement, copied[1], reason)
    if statement.startswith("CREATE UNIQUE INDEX"):
        return _explain_index(connection, statement, reason)
    return ""


def explain_orphans(connection: apsw.Connection) -> str:
    """Rows of a foreign key without the row that they refer to; "" where there are none."""
    found = rows_of(connection, 'SELECT "table", parent, fkid, count(*) FROM pragma_foreign_key_check GROUP BY 1, 3 LIMIT 1')
    if not found:
        return ""
    table, parent, number, count = found[0]
    ends = rows_of(connection, 'SELECT "from", "to" FROM pragma_foreign_key_list(?) WHERE id = ? ORDER BY seq', (table, number))
    ends = [(source, target or _keys(connection, parent)[place]) for place, (source, target) in enumerate(ends)]
    same = " AND ".join(f"p.{quoted(target)} = c.{quoted(source)}" for source, target in ends)
    given = " AND ".join(f"c.{quoted(source)} IS NOT NULL" for source, _ in ends)
    names = [*_keys(connection, table), *(source for source, _ in ends)]
    sql = (
        f"SELECT {', '.join(f'c.{quoted(name)}' for name in names)} FROM {quoted(table)} AS c "  # noqa: S608 - names of the schema
        f"WHERE {given} AND NOT EXISTS (SELECT 1 FROM {quoted(parent)} AS p WHERE {same}) LIMIT 1"
    )
    first = [dict(zip(names, row, strict=True)) for row in rows_of(connection, sql)]
    which = _first(first[0], f"; the first of {count} is ", f", {count} in all") if first else ""
    return f"a row of table {table} refers to a row that table {parent} does not have{which}"


def _explain_copy(connection: apsw.Connection, statement: str, table: str, reason: str) -> str:
    """Each row alone, in the order in which they are read: as SQLite would take them one by one."""
    keys, shown = _keys(connection, table), _spoken_of(connection, table, reason)
    alone = f"{statement} WHERE {' AND '.join(f'{quoted(key)} = ?' for key in keys)}"
    wanted = ", ".join(map(quoted, (*keys, *shown)))
    count, first, said = 0, dict[str, Any](), reason
    for row in rows_of(connection, f"SELECT {wanted} FROM {quoted(table)}"):  # noqa: S608 - names of the schema
        try:
            connection.execute(alone, row[: len(keys)])
        except apsw.Error as error:
            if not count:
                first, said = dict(zip((*keys, *shown), row, strict=True)), str(error).replace(NEW_TABLE, "")
            count += 1
    return f"{said}: {_of(count, table)}{_first(first)}" if count else reason


def _explain_index(connection: apsw.Connection, statement: str, reason: str) -> str:
    table, columns = index_table(statement), names_in_parentheses(statement)
    keys, held = _keys(connection, table), set(parse_table(_create(connection, table)).column_names)
    if not held.issuperset(columns):
        return reason  # an expression
    where = f" WHERE {statement.partition(') WHERE ')[2]}" if ") WHERE " in statement else ""
    equal, names = ", ".join(map(quoted, columns)), ", ".join(map(quoted, (*keys, *columns)))
    sql = (
        f"SELECT *, count(*) OVER () FROM (SELECT {names}, row_number() OVER (PARTITION BY {equal} ORDER BY "  # noqa: S608 - as above
        f'{", ".join(map(quoted, keys))}) AS "cmdlog at" FROM {quoted(table)}{where}) WHERE "cmdlog at" > 1 AND '
        + " AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns)
        + " LIMIT 1"
    )
    for *row, _, count in rows_of(connection, sql):
        return f"{reason}: {_of(count, table)}{_first(dict(zip((*keys, *columns), row, strict=True)))}"
    return reason


def _of(count: int, table: str) -> str:
    return f"{count} row{'s' * (count != 1)} of {table} {'are' if count != 1 else 'is'} refused"


def _first(row: Mapping[str, Any], before: str = "; the first is ", instead: str = "") -> str:
    return value_in_text(row, lambda shown: f"{before}{shown_row(shown)}", instead)


def _spoken_of(connection: apsw.Connection, table: str, reason: str) -> list[str]:
    """The columns that a reason names, itself or by the constraint that it names; all where it names none."""
    after = parse_table(_create(connection, NEW_TABLE + table))
    rules = [*after.constraints, *(part for column in after.columns for part in column_parts(column.text)[1:])]
    named = {word.rpartition(".")[2] for word in names_of(reason)}
    for rule in rules:
        if rule.upper().startswith("CONSTRAINT") and reason.endswith(f": {constraint_name(rule)}"):
            named |= names_of(rule)
    held = [name for name in parse_table(_create(connection, table)).column_names if name not in _keys(connection, table)]
    return [name for name in held if name in named] or held


def _create(connection: apsw.Connection, table: str) -> str:
    return str(rows_of(connection, "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,))[0][0])


def _keys(connection: apsw.Connection, table: str) -> Sequence[str]:
    return [
        str(name) for (name,) in rows_of(connection, "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (table,))
    ]
