"""Frozen dataclasses and named tuples on the wire: field by field, with defaults filled in before the log.

One rule: a class that is no more than its fields is trusted to come back equal. One that runs code when it is made is asked
(`repeated_objects`).
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

from procedures.errors import DefinitionError
from procedures.wire.repeated_objects import UNCHECKED, ObjectFields, stated_default
from procedures.wire.scalar_codecs import Codec, NotRepeatable, Schema, WireError, field_to_wire, refuse

_SETTER: Final = "__dataclass_builtins_object__"

Build = Callable[[Any, tuple[Any, ...]], Codec]


def dataclass_codec(kind: Any, inside: tuple[Any, ...], build: Build) -> Codec:
    """Object with one member per field; fields with a default may be left out, and the log then holds the default."""
    if kind in inside:
        raise DefinitionError(f"{kind.__name__} contains itself; a value on the wire has a bounded depth")
    if not kind.__dataclass_params__.frozen:
        raise DefinitionError(f"{kind.__name__} must be a frozen dataclass: parameters are values")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    codecs = {field.name: build(hints[field.name], (*inside, kind)) for field in fields}
    defaults = {field.name: default for field in fields if (default := _default_of(field)) is not None}
    required = codecs.keys() - defaults.keys()

    def write(value: Any) -> Any:
        return {name: field_to_wire(name, codec, getattr(value, name)) for name, codec in codecs.items()}

    def make(wire: Any) -> Any:
        return kind(**{name: codecs[name].from_wire(element) for name, element in wire.items()})

    def complete(value: Any) -> Any:
        if not isinstance(value, dict):
            refuse("an object", value)
        if unknown := sorted(str(name) for name in value.keys() - codecs.keys()):
            raise WireError(f"unknown field {', '.join(unknown)}")
        if missing := sorted(required - value.keys()):
            raise WireError(f"missing field {', '.join(missing)}")
        return {
            name: field_to_wire(name, codec, value[name] if name in value else defaults[name]()) for name, codec in codecs.items()
        }

    more = tuple(field.name for field in dataclasses.fields(kind) if not field.init)
    known = ObjectFields(kind, codecs, more, make, write)
    to_wire = _to_wire(kind, known, complete, runs_code=bool(more) or _runs_code(kind))
    return Codec(to_wire, make, object_schema(kind, codecs, required))


def named_tuple_codec(kind: Any, inside: tuple[Any, ...], build: Build) -> Codec:
    """Array of the fields, where the last ones may be left out if they have defaults; inside Python also the tuple itself."""
    if kind in inside:
        raise DefinitionError(f"{kind.__name__} contains itself; a value on the wire has a bounded depth")
    hints = typing.get_type_hints(kind, include_extras=True)
    if missing := [name for name in kind._fields if name not in hints]:
        raise DefinitionError(f"{kind.__name__}.{missing[0]} needs a type: derive from typing.NamedTuple")
    named = {name: build(hints[name], (*inside, kind)) for name in kind._fields}
    fields = build(tuple[tuple(hints[name] for name in kind._fields)], (*inside, kind))  # type: ignore[misc]
    required, defaults = len(named) - len(kind._field_defaults), tuple(kind._field_defaults.values())  # the last ones have them

    def make(wire: Any) -> Any:
        return kind(*fields.from_wire(wire))

    def complete(value: Any) -> Any:
        if isinstance(value, list | tuple) and required <= len(value) < len(named):
            value = (*value, *defaults[len(value) - required :])
        return fields.to_wire(value)

    known = ObjectFields(kind, named, (), make, fields.to_wire)
    to_wire = _to_wire(kind, known, complete, runs_code=kind.__bases__ != (tuple,))
    return Codec(to_wire, make, {**fields.schema, "minItems": required, "title": kind.__name__})


def _to_wire(kind: Any, known: ObjectFields, complete: Callable[[Any], Any], *, runs_code: bool) -> Callable[[Any], Any]:
    """What takes an object of the class, or the values that make one."""
    unchecked = UNCHECKED.get()
    write = known.write if unchecked or not runs_code else known.check_object
    settle = None if unchecked or not runs_code else known.settle_request

    def to_wire(value: Any) -> Any:
        if isinstance(value, kind):
            if type(value) is not kind and not unchecked:
                raise NotRepeatable(f"expected {known.name}, got its subclass {type(value).__name__}, which the log cannot hold")
            return write(value)
        wire = complete(value)
        return wire if settle is None else settle(wire)

    return to_wire


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    """What makes the field's default; None without one."""
    default, factory = stated_default(field)
    if factory is not dataclasses.MISSING:
        made: Callable[[], Any] = factory
        return made
    return None if default is dataclasses.MISSING else lambda: default


def _runs_code(kind: Any) -> bool:
    """Whether an object may be more, or other, than its fields: by code that runs when it is made, or when a field is read."""
    own = "__dataclass_fields__" in kind.__dict__ and kind.__dataclass_params__.init and _is_generated(kind)
    made = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__ and not hasattr(kind, "__post_init__")
    read = kind.__getattribute__ is object.__getattribute__ and not any(
        _is_bent(kind, name) for name in kind.__dataclass_fields__
    )
    return hasattr(kind, "__pydantic_validator__") or not (own and made and read)


def _is_generated(kind: Any) -> bool:
    """Whether `dataclasses` has written its `__init__`, which sets the fields of a frozen class by a name of its own."""
    code = getattr(kind.__init__, "__code__", None)
    fields = any(field.init for field in dataclasses.fields(kind))
    return not fields or (code is not None and _SETTER in code.co_freevars + code.co_names)


def _is_bent(kind: Any, name: str) -> bool:
    """Whether a descriptor of the class is between the field and its value."""
    held = inspect.getattr_static(kind, name, None)
    return hasattr(type(held), "__set__") and not inspect.ismemberdescriptor(held)


def object_schema(kind: Any, codecs: dict[str, Codec], required: typing.Iterable[str]) -> Schema:
    """The JSON schema of a closed object."""
    return {
        "type": "object",
        "title": kind.__name__,
        "properties": {name: codec.schema for name, codec in codecs.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }
