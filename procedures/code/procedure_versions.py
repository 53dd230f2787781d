"""Versions of procedures: what a catalog record states of each of them.

A bundle is one version of all the code, and that is what a replay goes by: a procedure may behave differently because of a helper
that it calls. For people, and for anyone who compares two versions, the record also says of each procedure the hash of its own
source, and `version`: the first catalog version in which it had this source and these parameters. The source itself is in the
bundle's modules.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Table

from procedures.code.bundle import Bundle
from procedures.declaration.columns.column_types import is_narrower, stated_limit
from procedures.declaration.database import Database
from procedures.declaration.stored_forms import READ_BY_FORM, form_of, named
from procedures.errors import SchemaConflict
from procedures.idempotency.request_history import JUDGED, VersionFacts, defaults_of, next_requests, requests_of

FUNCTIONS_READ_MAX: Final = 1024  # whose hash is remembered: reading a source takes a millisecond


def catalog_value(
    db: Database, bundle: Bundle, version: int, before: Mapping[str, Any] | None, *, partitions: int | None, stated_at: int = 0
) -> dict[str, Any]:
    """Value of the CATALOG record of this version; `before` is that of the version before it.

    `partitions`: how many there are. A replay judges by it whether a row was written where it belongs; None: it is not judged.
    `stated_at`: a transaction id that nothing before the record has, and nothing after it; 0: it is not known, and a recovery as
    of a moment keeps the version.
    """
    columns = columns_to_judge(db, before)
    judged: Mapping[str, Any] = {} if columns is None else {JUDGED: columns}
    return {
        **({} if partitions is None else {"partitions": partitions}),
        **({"stated_at": stated_at} if stated_at else {}),
        "version": version,
        "hash": bundle.hash,
        "database": db.name,
        "tables": {name: info.partition_by for name, info in sorted(db.tables.items())},  # None: replicated
        "forms": {name: _forms(info.table) for name, info in sorted(db.tables.items())},
        "limits": {name: _limits(info.table) for name, info in sorted(db.tables.items())},
        **({"migrations": [migration.name for migration in db.migrations]} if db.migrations else {}),
        "procedures": _version_json(db, bundle, version, before),  # readers of the log need the names, not the code
        "bundle": replace(bundle, requests={**next_requests(db.procedure_list, before), **judged}).to_bytes().decode(),
    }


def check_rows(db: Database, before: Mapping[str, Any] | None) -> None:
    """Refuses code that would look for rows that exist where they are not, or read them as what they are not.

    `before`: value of the CATALOG record that it follows; None for the first. Raises: SchemaConflict.
    """
    _check_placement(db, before or {})
    _check_forms(db, before or {})


def _check_placement(db: Database, before: Mapping[str, Any]) -> None:
    """A partition column that is gone was renamed by a migration: its values stay, and so do the rows."""
    for name, column in (before.get("tables") or {}).items():
        info = db.tables.get(name)
        if info is None or info.partition_by == column:
            continue
        if info.partition_by is None or column is None or column in info.table.columns:
            was, now = (f"partitioned by {each}" if each else "replicated" for each in (column, info.partition_by))
            raise SchemaConflict(
                f"table {name!r} is {was} in the log and {now} in the program: its rows are on other partitions than those that "
                "its calls look on, and no migration moves them; make a new directory with the program, and send it the calls "
                "that `cmdlog log history DIR` lists"
            )


def _check_forms(db: Database, before: Mapping[str, Any]) -> None:
    """Tables look the same whether a TEXT column has dates, times or UUIDs. A new migration is what converts them."""
    if {migration.name for migration in db.migrations} - set(before.get("migrations") or ()):
        return
    for name, stated in (before.get("forms") or {}).items():
        info = db.tables.get(name)
        for column, form in (_forms(info.table) if info is not None else {}).items():
            was = stated.get(column, form)
            if was != form and form in READ_BY_FORM:
                raise SchemaConflict(
                    f"column {column!r} of table {name!r} is {named(was)} in the log and {named(form)} in the program: its rows "
                    f"are stored in another form; write a migration with op.alter_column({name!r}, {column!r}, type_=…), which "
                    "looks at each of them, or declare a new column"
                )


def columns_to_judge(db: Database, before: Mapping[str, Any] | None) -> dict[str, list[str]] | None:
    """Table → columns whose types may not take what they took before, and new ones; None where the record does not say."""
    if before is None or "limits" not in before:
        return None
    found = {}
    for name, info in sorted(db.tables.items()):
        forms, limits = before["forms"].get(name, {}), before["limits"].get(name, {})
        now, limited = _forms(info.table), _limits(info.table)
        found[name] = [
            column for column in now if forms.get(column) != now[column] or is_narrower(limited.get(column), limits.get(column))
        ]
    return {name: columns for name, columns in found.items() if columns}


def narrowed_column(db: Database, before: Mapping[str, Any]) -> str:
    """A column that the record has, and that may take less now; "" without one."""
    found, had = columns_to_judge(db, before) or {}, before.get("forms") or {}
    narrowed = (f"{name}.{column}" for name, columns in found.items() for column in columns if column in had.get(name, ()))
    return next(narrowed, "")


def _limits(table: Table) -> dict[str, list[Any]]:
    """What the types of its columns state beside their forms."""
    found = {str(column.name): stated_limit(column.type) for column in table.columns}
    return {name: limit for name, limit in found.items() if limit is not None}


def _forms(table: Table) -> dict[str, str]:
    """How the values of each column are stored, where that is known."""
    found = {str(column.name): form_of(column) for column in table.columns}  # a name of SQLAlchemy's own type is no key of JSON
    return {name: form for name, form in found.items() if form is not None}


def stated_after(value: Mapping[str, Any], until: int) -> bool:
    """Whether the CATALOG record of this value came after everything up to that transaction id."""
    return int(value.get("stated_at", 0)) > until


def partitions_of(value: Mapping[str, Any]) -> int | None:
    """How many partitions a CATALOG record's value states; None where rows are not judged by their place."""
    stated = value.get("partitions")
    return stated if isinstance(stated, int) else None


def facts_of(value: Mapping[str, Any]) -> VersionFacts:
    """What a CATALOG record's value states beside the code."""
    return VersionFacts(partitions_of(value), requests_of(value))


def procedures_of(value: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What a CATALOG record's value says of its procedures, by number: name, parameters."""
    stated: Sequence[Mapping[str, Any]] = value.get("procedures", ())
    return stated


def _version_json(db: Database, bundle: Bundle, version: int, before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    known = {stated["name"]: stated for stated in (before or {}).get("procedures", ())}
    found = []
    for stated in bundle.procedures:
        facts = {**stated, "source_hash": source_hash(db.procedures[stated["name"]].function)}
        last = known.get(stated["name"], {})
        same = bool(facts["source_hash"]) and all(last.get(name) == value for name, value in facts.items())
        defaults = defaults_of(db.procedures[stated["name"]])
        found.append({**facts, **({"defaults": defaults} if defaults else {}), "version": last["version"] if same else version})
    return found


@functools.lru_cache(maxsize=FUNCTIONS_READ_MAX)
def source_hash(function: Callable[..., Any]) -> str:
    """SHA-256, hexadecimal, of the function's own source with its decorators; "" where there is none to be had."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()
