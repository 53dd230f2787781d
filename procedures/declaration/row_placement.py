"""Where a row of a partitioned table lives: from what its partition column stores to the slot of calls with that value.

One rule: a row's slot is that of the wire form of its partition column, since calls are routed by the wire form of a parameter. A
column stores most values in just that form; dates and times, bytes and the like are turned back first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import types

from procedures.declaration.database import Database, TableInfo
from procedures.declaration.dialect import DIALECT, result_processor_of
from procedures.declaration.hash_slots import partition_by_slot, slot_of
from procedures.errors import DefinitionError, StateRefused
from procedures.wire.type_codecs import codec_for


def slot_reader(info: TableInfo) -> Callable[[Any], int]:
    """Stored value of the table's partition column -> slot; it raises TypeError for a value that has none (NULL, a float)."""
    if info.partition_by is None:
        raise StateRefused(f"table {info.table.name} is replicated: its rows live on every partition")
    type_ = info.table.columns[info.partition_by].type
    if isinstance(type_, types.Integer | types.String | types.Uuid) and not isinstance(type_, types.Enum):
        return slot_of
    processor = result_processor_of(type_)

    def slot(stored: Any) -> int:
        value = stored if processor is None or stored is None else processor(stored)
        return slot_of(_wire(value))

    return slot


def owner_reader(info: TableInfo, partitions: int) -> Callable[[Any], int | None]:
    """Value as SQLite compares it with the table's partition column -> the partition of its rows; None: no row can have it."""
    slot, owners, as_stored = slot_reader(info), partition_by_slot(partitions), _affinity_of(info)

    def owner(value: Any) -> int | None:
        try:
            return owners[slot(as_stored(value))]
        except (TypeError, ValueError):
            return None

    return owner


def _affinity_of(info: TableInfo) -> Callable[[Any], Any]:
    """What SQLite makes of a value that is compared with the partition column."""
    stored = str(info.table.columns[str(info.partition_by)].type.compile(dialect=DIALECT))
    return {"INTEGER": _as_integer, "TEXT": _as_text}.get(stored, lambda value: value)


def _as_integer(value: Any) -> Any:
    if isinstance(value, int | str) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _as_text(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else str(int(value)) if isinstance(value, int) else value


def _wire(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)  # a parameter that routes is never a bool, but may be 0 or 1
    try:
        return codec_for(type(value)).to_wire(value)
    except DefinitionError as error:
        raise TypeError(str(error)) from None


def check_kinds(database: Database) -> None:
    """Raises StateRefused for a table that no call could be routed to by its partition column: integers and text never meet."""
    routed = {
        procedure.parameters[procedure.partition_at].codec.schema["type"]
        for procedure in database.procedure_list
        if procedure.partition_at is not None
    }
    for name, info in database.tables.items():
        if info.partition_by is None or not routed:
            continue
        kind = "integer" if isinstance(info.table.columns[info.partition_by].type, types.Integer | types.Boolean) else "string"
        if kind not in routed:
            raise StateRefused(
                f"table {name} is partitioned by {info.partition_by}, which holds values of kind {kind}; but every call is "
                f"routed by a value of kind {' or '.join(sorted(routed))}, so its rows are not where their column says"
            )
