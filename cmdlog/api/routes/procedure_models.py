"""Models of pydantic for the parameters and the answer of each procedure, from the hints of its signature.

One rule: the codec of a hint decides. A model takes what the gate takes, gives the values that the procedure gets, and writes
what the log holds; pydantic describes it. Objects are described as models of their own, so that FastAPI names each of them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    WithJsonSchema,
    create_model,
    with_config,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from cmdlog.api.routes.response_models import AS_OF, AS_OF_TIME, Count, TxnIdText, absent
from cmdlog.node.slot_map import Route
from procedures.declaration.procedure import Procedure, hints_of
from procedures.wire.model_codecs import constrained
from procedures.wire.scalar_codecs import INT_MAX, SCALARS, Codec, Schema, same
from procedures.wire.type_codecs import codec_for

CLOSED: Final = ConfigDict(extra="forbid", protected_namespaces=())


@dataclass(frozen=True)
class WireForm:
    """For pydantic, beside a hint: values go through its codec, and are described as another type, which has the form of JSON."""

    codec: Codec
    described: Any

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Validates as the gate does, and writes as the log has it."""
        codec = self.codec
        return core_schema.no_info_plain_validator_function(
            lambda value: codec.from_wire(codec.to_wire(value)),
            serialization=core_schema.plain_serializer_function_ser_schema(codec.to_wire),
        )

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What pydantic says of the other type, which is asked for as a part of another schema: so a model is referred to."""
        return handler(core_schema.no_info_after_validator_function(same, TypeAdapter(self.described).core_schema))


def parameters_model(procedure: Procedure) -> type[BaseModel]:
    """The object of a call's parameters: `reserve_items` has `ReserveItemsParameters`."""
    hints = hints_of(procedure.function)
    fields: dict[str, Any] = {}
    for parameter in procedure.parameters:
        hint, codec = hints[parameter.name], parameter.codec
        name = _attribute(parameter.name, fields)
        default = {} if parameter.required else {"default": parameter.default}
        field = Field(
            **({} if parameter.required else {"default_factory": _default_of(codec, parameter.default)}),
            alias=parameter.name if name != parameter.name else None,
            json_schema_extra=default,
        )
        fields[name] = (Annotated[hint, WireForm(codec, described_type(hint))], field)
    return create_model(
        f"{_camel(procedure.name)}Parameters", __config__=CLOSED, __module__=procedure.function.__module__, **fields
    )


def answer_model(route: Route) -> type[BaseModel]:
    """The answer to a call: `reserve_items` has `ReserveItemsAnswer`."""
    procedure = route.procedure
    hint = hints_of(procedure.function).get("return", Any)
    result: Any = Any
    if procedure.result_codec is not None:
        result = Annotated[hint, WireForm(procedure.result_codec, described_type(hint))]
    fields: dict[str, Any] = {"txn_id": (TxnIdText, ...), "partition": (Count, ...), "result": (result, ...)}
    if route.everywhere:
        fields |= {"partition": (None, ...), "result": (list[result], Field(description="in partition order"))}
    if route.read_only:
        fields |= {"as_of": (dict[str, TxnIdText], absent(AS_OF)), "as_of_time": (str, absent(AS_OF_TIME))}
    return create_model(f"{_camel(procedure.name)}Answer", __config__=CLOSED, __module__=procedure.function.__module__, **fields)


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def _default_of(codec: Codec, wire: Any) -> Any:
    return lambda: codec.from_wire(wire)


def _attribute(name: str, taken: Mapping[str, Any]) -> str:
    """The attribute for a parameter or field: its name, unless a model has that for itself, such as `json` or `_x`."""
    attribute = name.lstrip("_") or "field"
    if attribute != name or hasattr(BaseModel, name):
        attribute += "_"
    while attribute in taken:
        attribute += "_"
    return attribute


def described_type(hint: Any) -> Any:
    """The type by which pydantic describes the wire form of a hint: the hint itself, where pydantic writes it."""
    if isinstance(hint, typing.NewType):
        return described_type(hint.__supertype__)
    if hasattr(hint, "__value__"):  # `type X = ...` of Python 3.12
        return described_type(hint.__value__)
    if isinstance(hint, type) and (hint in SCALARS):
        return _described_scalar(SCALARS[hint].schema)
    if typing.get_origin(hint) is not None:
        return _described_generic(hint)
    if typing.is_typeddict(hint):
        return _described_dict(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _described_object(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint, include_extras=True)
        return tuple[tuple(described_type(hints[name]) for name in hint._fields)]  # type: ignore[misc]  # made at run time
    return hint


def _described_generic(hint: Any) -> Any:
    """Of a hint with arguments."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Required, typing.NotRequired):
        return described_type(arguments[0])
    if origin is Annotated:
        if arguments[0] in SCALARS:
            return _described_scalar(constrained(codec_for(hint), hint).schema)
        return Annotated[(described_type(arguments[0]), *arguments[1:])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(described_type, arguments))]  # noqa: UP007 - of arguments that are known at run time
    if origin in (list, dict, tuple):
        parts = tuple(part if part is Ellipsis else described_type(part) for part in arguments)
        return origin[parts if len(parts) > 1 else parts[0]]
    return hint


def _described_scalar(schema: Schema) -> Any:
    """By the codec's own schema. FastAPI writes limits as floats, which have no 2^63 - 1: "below 2^63" says the same, exactly."""
    if schema.get("maximum") == INT_MAX:
        schema = {name: value for name, value in schema.items() if name != "maximum"} | {"exclusiveMaximum": INT_MAX + 1}
    return Annotated[Any, WithJsonSchema(schema)]


@cache
def _described_object(kind: Any) -> Any:
    """Of a frozen dataclass: a model with its fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.init:
            name = _attribute(field.name, fields)
            fields[name] = (described_type(hints[field.name]), _described_field(field, hints[field.name], name))
    generated = (kind.__doc__ or "").startswith(f"{kind.__name__}(")  # by `dataclass`
    doc = None if generated else kind.__doc__
    return create_model(kind.__name__, __config__=CLOSED, __module__=kind.__module__, __doc__=doc, **fields)


def _described_field(field: dataclasses.Field[Any], hint: Any, name: str) -> Any:
    alias = field.name if name != field.name else None
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return Field(alias=alias)
    stated = {} if field.default is dataclasses.MISSING else {"default": codec_for(hint).to_wire(field.default)}
    return Field(default_factory=lambda: None, alias=alias, json_schema_extra=stated)


@cache
def _described_dict(kind: Any) -> Any:
    """Of a TypedDict: one with the described types, which takes no other keys."""
    hints, members = typing.get_type_hints(kind, include_extras=True), {}
    for name, hint in hints.items():
        said = typing.get_origin(hint)
        required = said is typing.Required or (said is not typing.NotRequired and name in kind.__required_keys__)
        described = described_type(hint)
        members[name] = described if required else typing.NotRequired[described]
    make: Any = TypedDict  # of a name and members that are known at run time
    return with_config(CLOSED)(make(kind.__name__, members))
