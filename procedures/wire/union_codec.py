"""Unions: a value goes as the one member of the union that it fits.

One rule: the wire form alone says which member it is, since the log holds nothing else. Unions in which it could be two of them
are refused when they are declared, and not when the first such value comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from procedures.errors import DefinitionError
from procedures.wire.scalar_codecs import Codec, Schema, WireError, same


def union_codec(hint: Any, members: Sequence[Codec]) -> Codec:
    """The codec of a union. Raises: DefinitionError."""
    for one, other in combinations(members, 2):
        if why := _ambiguity(one.schema, other.schema, plain=one.plain and other.plain):
            raise DefinitionError(f"{hint!r} has no one meaning on the wire: {why}")

    def to_wire(value: Any) -> Any:
        return _fitting(members, value)[1]

    def from_wire(wire: Any) -> Any:
        return _fitting(members, wire)[0].from_wire(wire)

    plain = all(member.plain for member in members)
    return Codec(to_wire, same if plain else from_wire, {"anyOf": [member.schema for member in members]}, plain=plain)


def _fitting(members: Sequence[Codec], value: Any) -> tuple[Codec, Any]:
    """The member that keeps the value as it is, else the first that takes it: 1 is an int of `float | int`."""
    first: tuple[Codec, Any] | None = None
    problems = []
    for member in members:
        try:
            wire = member.to_wire(value)
        except WireError as error:
            problems.append(str(error))
            continue
        if type(wire) is type(value) and wire == value:
            return member, wire
        first = first or (member, wire)
    if first is None:
        raise WireError("; or ".join(dict.fromkeys(problems)))
    return first


def _ambiguity(one: Schema, other: Schema, *, plain: bool) -> str:
    """Why a wire form could be of both; "" when it cannot."""
    kinds = _kinds(one) & _kinds(other)
    if "any" in _kinds(one) | _kinds(other):
        return "one of its members takes any JSON"
    if "array" in kinds:
        return "two of its members are arrays; put them into dataclasses"
    if kinds & {"string", "integer", "boolean"} and not plain and _same_scalars(one, other):
        return "a text or number could be two of its members; put them into dataclasses"
    if "object" in kinds and _same_objects(one, other):
        return "an object could be two of its members; give each a field `kind: Literal[...]` with a value of its own"
    return ""


def _kinds(schema: Schema) -> set[str]:
    """The JSON types of a schema; `any` where it names none."""
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return {kind for part in parts for kind in _kinds(part)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {{bool: "boolean", int: "integer"}.get(type(value), "string") for value in values}
    return {schema["type"]} if isinstance(schema.get("type"), str) else {"any"}


def _same_scalars(one: Schema, other: Schema) -> bool:
    constants = _constants(one), _constants(other)
    if all(constants):
        return not constants[0].isdisjoint(constants[1])
    return not all(part.keys() & _NARROW and "contentEncoding" not in part for schema in (one, other) for part in _texts(schema))


_NARROW = {"format", "pattern"}  # of two such types, none takes the other's texts


def _texts(schema: Schema) -> list[Schema]:
    return [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]


def _same_objects(one: Schema, other: Schema) -> bool:
    """Whether an object could be both: by required fields, by closed sets of fields, and by fields with different constants."""
    for left, right in ((one, other), (other, one)):
        closed = not left.get("additionalProperties", False)
        if closed and not set(right.get("required", ())) <= set(left.get("properties", ())):
            return False
    mine, others = one.get("properties", {}), other.get("properties", {})
    constants = [(_constants(mine[name]), _constants(others[name])) for name in mine.keys() & others.keys()]
    return not any(left and right and left.isdisjoint(right) for left, right in constants)


def _constants(schema: Schema) -> set[Any]:
    return {(type(value), value) for value in schema.get("enum", [schema["const"]] if "const" in schema else [])}
