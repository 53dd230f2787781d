"""Tables of a Spark catalog: `CREATE TABLE calls USING cmdlog OPTIONS (path '…')`.

One rule: the schema carries the options. A catalog hands its options over when it asks for the columns, mixed with properties of
its own, and Spark (4.3) does not hand them over again when the table is read: a Python source then gets the columns and nothing
else. So the first of the columns that a catalog is given holds the options as metadata.

A catalog marks what was in OPTIONS with a prefix and gives `path` without one. Everything else that it gives (owner, comment,
location, TBLPROPERTIES) is its own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PROVIDER: Final = "provider"  # only a catalog gives it
OPTION: Final = "option."
PATH: Final = "path"
METADATA: Final = "cmdlog.options"
_JSON_NAMES: Final = {"int": "integer", "bigint": "long"}  # of types in a schema's JSON; the others are called as in SQL


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Whether a catalog gave these, to learn the columns of a new table."""
    return PROVIDER in {name.lower() for name in given}


def options_of_catalog(given: Mapping[str, str]) -> dict[str, str]:
    """What the statement has as OPTIONS or LOCATION."""
    stated = {name[len(OPTION) :]: value for name, value in given.items() if name.lower().startswith(OPTION)}
    return stated | {name: value for name, value in given.items() if name.lower() == PATH}


def with_options(columns: Mapping[str, str], given: Mapping[str, str]) -> StructType:
    """These columns (name -> Spark's type), which hold the options for every later read of the table."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - a planner that reads without a catalog needs none

    fields: list[dict[str, Any]] = [
        {"name": name, "type": _JSON_NAMES.get(kind, kind), "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    fields[0]["metadata"] = {METADATA: orjson.dumps(dict(given)).decode()}
    return StructType.fromJson({"type": "struct", "fields": fields})


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a table of a catalog was made with; {} of any other schema."""
    for field in schema.fields:
        if (text := field.metadata.get(METADATA)) is not None:
            return {str(name): str(value) for name, value in orjson.loads(text).items()}
    return {}
