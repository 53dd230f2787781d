"""The models of an OpenAPI description: objects with a title stand once below `components/schemas`, under that title.

Generators of clients name their classes by it, and `/docs` lists them as FastAPI's pages list models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


class NamedModels:
    """Schemas by name. Two different ones never share a name: the second gets a number."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self.schemas = dict(schemas)

    def named(self, schema: Schema) -> Schema:
        """A reference to the schema, or the schema itself where it is no object with a title; its parts likewise."""
        held = self._parts_named(schema)
        title = re.sub(r"[^A-Za-z0-9_.-]", "", str(schema.get("title", "")))
        if not title or "properties" not in schema:
            return held
        name, number = title, 1
        while self.schemas.get(name, held) != held:
            number += 1
            name = f"{title}{number}"
        self.schemas[name] = held
        return {"$ref": f"#/components/schemas/{name}"}

    def _parts_named(self, schema: Schema) -> Schema:
        named: Schema = {}
        for key, value in schema.items():
            if key == "properties":
                named[key] = {name: self.named(part) for name, part in value.items()}
            elif key in ("items", "additionalProperties") and isinstance(value, dict):
                named[key] = self.named(value)
            elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
                named[key] = [self.named(part) for part in value]
            else:
                named[key] = value
        return named
