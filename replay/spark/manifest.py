"""What a manifest says of tables, and that all files of a table have one type for each column.

One rule: files of different partitions must be readable as one table. Only a Numeric without a declared scale can differ: each
partition takes the scale that its values need. Then the files are brought to the largest one; where 38 digits are too few for
that, to text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from replay.spark.attempt import seal

DECIMAL: Final = "decimal"


def tables_of(found: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], folder: str) -> dict[str, Any]:
    """Table -> rows, columns and files, of (row, file of it); `folder` stands between a table's name and its files."""
    tables: dict[str, Any] = {}
    for row, file in sorted(found, key=lambda pair: (pair[1]["table"], pair[0]["partition"])):
        table = tables.setdefault(file["table"], {"rows": 0, "columns": dict(file["columns"]), "files": []})
        table["rows"] += file["rows"]
        name = "/".join(part for part in (file["table"], folder, f"{row['key']}.parquet") if part)
        kept = {key: file[key] for key in ("rows", "bytes", "sha256", "digest", "columns") if key in file}
        table["files"].append({"path": name, "partition": row["partition"], "from": file["path"], **kept})
    return tables


def agree_on_types(folder: str, moments: Iterable[Mapping[str, Any]]) -> None:
    """Brings files of one table, at all moments (table -> what `tables_of` gives), to the same types, which are noted there.

    It writes beside an attempt's file and leaves that as it is: broken off, it can be done again.
    """
    by_table: dict[str, list[dict[str, Any]]] = {}
    for moment in moments:
        for name, table in moment.items():
            by_table.setdefault(name, []).append(table)
    for tables in by_table.values():
        files = [file for table in tables for file in table["files"]]
        agreed = _agreed([file["columns"] for file in files])
        for file in files:
            stated = file.pop("columns")
            if any(stated.get(column, wanted) != wanted for column, wanted in agreed.items()):
                _rewrite(folder, file, agreed)
        for table in tables:
            table["columns"] |= {column: wanted for column, wanted in agreed.items() if column in table["columns"]}


def _agreed(columns: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Column -> the type of it in all files, of those that differ in their scales."""
    found: dict[str, set[str]] = {}
    for of in columns:
        for name, kind in of.items():
            found.setdefault(name, set()).add(kind)
    agreed = {}
    for name, kinds in found.items():
        if len(kinds) > 1 and all(kind.startswith(DECIMAL) or kind == "string" for kind in kinds):
            scales = [int(kind.rstrip(")").partition(",")[2]) for kind in kinds if kind.startswith(DECIMAL)]
            agreed[name] = "string" if "string" in kinds else f"decimal128(38, {max(scales)})"
    return agreed


def _rewrite(folder: str, file: dict[str, Any], agreed: Mapping[str, str]) -> None:
    """The same rows with other types. A cast that would lose digits is an error of pyarrow, and then there is no output."""
    import pyarrow  # noqa: PLC0415 - only this needs it
    from pyarrow import parquet  # noqa: PLC0415 - as above

    source = os.path.join(folder, file["from"])
    target = f"{source}.agreed"
    with parquet.ParquetFile(source) as reader:
        schema = reader.schema_arrow
        for at, field in enumerate(schema):
            if (wanted := agreed.get(field.name)) is not None:
                kind = pyarrow.string() if wanted == "string" else pyarrow.decimal128(38, _scale(wanted))
                schema = schema.set(at, field.with_type(kind))
        with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
            for batch in reader.iter_batches():
                writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
    file |= {"from": f"{file['from']}.agreed", **seal(target)}


def _scale(kind: str) -> int:
    return int(kind.rstrip(")").partition(",")[2])
