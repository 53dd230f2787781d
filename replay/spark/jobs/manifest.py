"""What a manifest says about tables.

One rule: files of one table have the same columns, since types follow from declarations (`snapshot.column_types`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def tables_of(found: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], folder: str) -> dict[str, Any]:
    """Table -> rows, columns and files, of (row, file of it); `folder` comes between a table's name and its files."""
    tables: dict[str, Any] = {}
    for row, file in sorted(found, key=lambda pair: (pair[1]["table"], pair[0]["partition"])):
        table = tables.setdefault(file["table"], {"rows": 0, "columns": dict(file["columns"]), "files": []})
        table["rows"] += file["rows"]
        name = "/".join(part for part in (file["table"], folder, f"{row['key']}.parquet") if part)
        kept = {key: file[key] for key in ("rows", "bytes", "sha256", "digest") if key in file}
        table["files"].append({"path": name, "partition": row["partition"], "from": file["path"], **kept})
    return tables
