"""Types of pydantic on the wire: models, and every other type that pydantic writes as JSON and reads back.

Pydantic validates what comes in, by the model's own configuration. What goes into the log is its JSON, ordered by name, and only
if reading it gives an equal value: a `SecretStr`, an excluded field or a set has no such form. A default is filled in before
the log, so that a factory runs once. Validators run again in every replay, so they must depend on their argument alone; types
that look at the clock (`FutureDate`) are refused, and complex numbers, for which JSON has no form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, get_args

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from procedures.errors import DefinitionError
from procedures.wire.json_values import canonical_json
from procedures.wire.repeated_objects import UNCHECKED
from procedures.wire.scalar_codecs import Codec, NotRepeatable, Schema, WireError, check_duration

_PACKAGES: Final = ("pydantic", "annotated_types")
_BOUNDS: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"}
_BOUNDS_OF_MANY: Final = {"minItems", "maxItems", "minProperties", "maxProperties", "description", "title", "examples"}


def pydantic_codec(hint: Any) -> Codec:
    """The codec of a type that pydantic knows. Raises: DefinitionError."""
    adapter = _adapter(hint)
    schema = {**inline_schema(_json_schema(hint, adapter)), "x-written-by": "pydantic"}  # its texts are not spelled as ours
    _check_repeatable(hint, adapter, schema)
    checked = not UNCHECKED.get()
    hidden = checked and any(_has_more(part) for part in _parts(adapter.core_schema))
    durations = checked and any(part.get("type") == "timedelta" for part in _parts(adapter.core_schema))

    def to_wire(value: Any) -> Any:
        held = _validated(adapter, value)
        if durations:
            _check_durations(adapter.dump_python(held))
        try:
            wire = canonical_json(adapter.dump_python(held, mode="json", by_alias=True))
        except (PydanticSerializationError, OverflowError) as error:
            raise WireError(f"cannot be written as JSON: {error}") from None
        if hidden or wire != value:
            _check_read_back(_name(hint), adapter, held, wire)
        return wire

    return Codec(to_wire, lambda wire: adapter.validate_json(orjson.dumps(wire)), schema)


def _has_more(part: Mapping[str, Any]) -> bool:
    """Whether an object of this part of a schema has more than its fields: private attributes, or code that runs at the end."""
    kind = part.get("cls")
    return part.get("type") == "model" and (bool(getattr(kind, "__private_attributes__", None)) or "post_init" in part)


def _check_read_back(name: str, adapter: TypeAdapter[Any], held: Any, wire: Any) -> None:
    """Raises: NotRepeatable, when JSON that the type writes is not read as what it was written of."""
    try:
        again = _validated(adapter, wire)
    except WireError as error:
        raise NotRepeatable(
            f"{name} cannot read the JSON that it writes ({error}): a serializer, an alias or an excluded field goes one way. "
            "Correct the model; the value is not at fault"
        ) from None
    if again != held:
        kind, fields = type(held).__name__, [at for at in _vars_of(held) if _vars_of(held)[at] != _vars_of(again).get(at)]
        which = f"its field {fields[0]!r} is" if fields else "some of its fields are"
        raise NotRepeatable(f"{kind} does not come back equal from its JSON; {which} hidden or bent")


def _vars_of(held: Any) -> dict[str, Any]:
    """The fields of a model and its private attributes; empty of any other value."""
    return {**getattr(held, "__dict__", {}), **(getattr(held, "__pydantic_private__", None) or {})}


def _check_durations(value: Any) -> None:
    """Raises: WireError, when one inside is too long."""
    if isinstance(value, timedelta):
        check_duration(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _check_durations(part)


def constrained(codec: Codec, hint: Any) -> Codec:
    """The codec with the constraints that `Annotated` states for pydantic, such as `Field(gt=0)`, checked at the gate."""
    if not _has_constraints(hint):
        return codec
    adapter = _adapter(hint)

    def to_wire(value: Any) -> Any:
        try:
            return codec.to_wire(adapter.validate_python(codec.from_wire(codec.to_wire(value))))
        except ValidationError as error:
            raise _wire_error(error) from None

    stated = _json_schema(hint, adapter)
    more = {name: value for name, value in stated.items() if name in _BOUNDS | _BOUNDS_OF_MANY}
    return Codec(to_wire, codec.from_wire, {**codec.schema, **more}, plain=codec.plain)


def _has_constraints(hint: Any) -> bool:
    if any(type(part).__module__.partition(".")[0] in _PACKAGES for part in getattr(hint, "__metadata__", ())):
        return True
    return any(_has_constraints(part) for part in get_args(hint))


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except PydanticUserError:  # neither a type of its own nor one that it can read
        raise DefinitionError(
            f"{_name(hint)} has no wire form; give the fields to a frozen dataclass, a TypedDict or a pydantic model "
            '(the types are listed in WRITING.md, "Parameters and results")'
        ) from None


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else repr(hint)


def _json_schema(hint: Any, adapter: TypeAdapter[Any]) -> Schema:
    try:
        return adapter.json_schema(ref_template="#/$defs/{model}")
    except PydanticUserError as error:
        raise DefinitionError(f"{_name(hint)} has no wire form: {error.message}") from None


def _check_repeatable(hint: Any, adapter: TypeAdapter[Any], schema: Schema) -> None:
    """Raises: DefinitionError: a replay could get another value than the call."""
    for part in _parts(adapter.core_schema):
        if part.get("now_op"):
            raise DefinitionError(f"{_name(hint)} compares with the clock, which is another one at every replay; use tx.now")
        if part.get("type") == "complex":
            raise DefinitionError(f"{_name(hint)} holds a complex number, which JSON has not; give both of its parts as floats")
    if any(part.get("uniqueItems") is True for part in _parts(schema)):
        raise DefinitionError(f"{_name(hint)} holds a set, whose order differs between processes; use a list")


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for part in value.values():
            yield from _parts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _parts(part)


def inline_schema(schema: Schema) -> Schema:
    """The schema without `$defs`: its parts stand where they are used, so that it can be part of another one.

    Raises: DefinitionError: a model contains itself.
    """
    definitions = schema.get("$defs", {})

    def inlined(value: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [inlined(part, inside) for part in value]
        if not isinstance(value, dict):
            return value
        # A reference is replaced by what it names, with its own members; all else keeps its members but the definitions.
        if isinstance(reference := value.get("$ref"), str):
            name = reference.rpartition("/")[2]
            if name in inside:
                raise DefinitionError(f"{name} contains itself; a value on the wire has a bounded depth")
            beside = {key: part for key, part in value.items() if key != "$ref"}
            return {**inlined(definitions[name], (*inside, name)), **beside}
        return {
            key: {name: inlined(of_it, inside) for name, of_it in part.items()} if key == "properties" else inlined(part, inside)
            for key, part in value.items()
            if key not in ("$defs", "discriminator")
        }

    whole: Schema = inlined(schema, ())
    return whole


def _validated(adapter: TypeAdapter[Any], value: Any) -> Any:
    """What the type makes of a value: of JSON as pydantic reads JSON, of everything else as it takes Python values."""
    try:
        try:
            wire = canonical_json(value)
        except WireError:
            return adapter.validate_python(value)
        return adapter.validate_json(orjson.dumps(wire))
    except ValidationError as error:
        raise _wire_error(error) from None
    except OverflowError as error:
        raise WireError(f"is out of range: {error}") from None


def _wire_error(error: ValidationError) -> WireError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in first["loc"])
    return WireError(f"{place}: {first['msg']}" if place else first["msg"])
