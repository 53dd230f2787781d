"""A typed client as the text of a Python module, from what a server says about its procedures: names and JSON schemas.

One rule: the module needs `cmdlog` alone, not the application. Objects become TypedDicts, texts of a known format Python's own
type for it. What a server says is written as a name that was checked, or by `repr`: a program that imports the module runs it.

The application chooses its names freely, and the module has names of its own. Where both want one, a procedure or parameter gets
an underscore at its end, as PEP 8 has it for keywords, and an object a number. The wire has the application's name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final

Schema = Mapping[str, Any]

HEAD: Final = '''"""Typed calls of {source}, written by `cmdlog stubs`. Write it again when the procedures change."""

from __future__ import annotations

{imports}
from cmdlog import AsyncClient, Call, Client, CmdlogError, Result
from cmdlog.client import NEW_KEY
from cmdlog.procedure_calls import NewKey

OMITTED: Any = object()  # the server fills in the parameter's default
'''
IMPORTS: Final = {
    "collections.abc": ("AsyncIterator", "Iterable", "Iterator"),
    "datetime": ("date", "datetime", "time", "timedelta"),
    "decimal": ("Decimal",),
    "typing": ("Any", "Literal", "NotRequired", "TypedDict"),
    "uuid": ("UUID",),
}
CALLS: Final = '''

def _given(params: dict[str, Any]) -> dict[str, Any]:
    return {{name: value for name, value in params.items() if value is not OMITTED}}


class {name}Calls:
    """Calls as values: items of a batch."""
'''
CLIENT: Final = '''

class {prefix}{name}Client:
    """One method per procedure, over a client that the caller opens and closes."""

    def __init__(self, client: {prefix}Client) -> None:
        self.client = client
'''
BATCH: Final = '''
    def batch(self, calls: Iterable[Call[Any]]) -> {iterator}[Result[Any] | CmdlogError]:
        """Calls in order, answered in the same order, with results as JSON has them; see `{prefix}Client.batch`."""
        return self.client.batch(calls)
'''
FORMATS: Final = {
    "decimal": "Decimal",
    "date-time": "datetime",
    "date": "date",
    "uuid": "UUID",
    "time-local": "time",
    "duration": "timedelta",
}
CONVERTED: Final = {*FORMATS.values(), "bytes", "tuple"}  # JSON has other types for these
SCALARS: Final = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
TYPES: Final = {*chain(*IMPORTS.values()), *SCALARS.values(), "bytes", "dict", "list", "tuple"}
HELPERS: Final = {"AsyncClient", "Call", "Client", "CmdlogError", "NEW_KEY", "NewKey", "OMITTED", "Result", "_given"}
METHODS: Final = {"batch", "client", "staticmethod", *TYPES, *HELPERS}  # a method of such a name hides it from its class


def is_class_prefix(name: str) -> bool:
    """Whether classes can be called `<name>Client` and `Async<name>Client`, without hiding the clients of `cmdlog`."""
    return name.isidentifier() and not name.startswith("_") and name != "Async"


def stub_module(procedures: Sequence[Mapping[str, Any]], *, name: str, source: str) -> str:
    """The module's text. `procedures` is the list of `GET /v1/procedures`, `name` begins the names of its classes."""
    classes = {f"{name}Calls", f"{name}Client", f"Async{name}Client"}
    names = _own_names([str(entry["name"]) for entry in procedures], reserved=METHODS)
    types = _WireTypes({*METHODS, *classes, *names.values()})
    methods = [_Method(entry, names[str(entry["name"])], types, reserved={"self", *classes, *HELPERS}) for entry in procedures]
    parts = [*types.declarations, CALLS.format(name=name), *(method.call() for method in methods)]
    for prefix, iterator in (("", "Iterator"), ("Async", "AsyncIterator")):
        parts.append(CLIENT.format(prefix=prefix, name=name))
        parts += [method.of_client(name, is_async=bool(prefix)) for method in methods]
        parts.append(BATCH.format(prefix=prefix, iterator=iterator))
    body = "".join(parts)
    return HEAD.format(source=_escaped(source), imports=_imports(f"Any {body}")) + body


def _imports(body: str) -> str:
    """The lines that import what the body uses."""
    words = set(re.findall(r"\w+", body))
    used = {module: [name for name in names if name in words] for module, names in IMPORTS.items()}
    return "".join(f"from {module} import {', '.join(names)}\n" for module, names in used.items() if names)


class _Method:
    """One procedure."""

    def __init__(self, entry: Mapping[str, Any], name: str, types: _WireTypes, *, reserved: Collection[str]) -> None:
        self._procedure = str(entry["name"])
        self._name = name
        stated = entry["parameters"]
        required, properties = set(stated.get("required", ())), stated.get("properties", {})
        camel = "".join(part.title() for part in self._procedure.split("_"))
        hints = {at: types.hint(schema, camel + _identifier(at).title()) for at, schema in properties.items()}
        result = types.hint(entry["result"], camel + "Result")
        everywhere = entry["partition_by"] not in properties  # null, or "each"
        self._result = f"list[{result}]" if everywhere and result != "None" else result
        words = set(re.findall(r"\w+", result))
        self._returns = result if set(re.findall(r"\w+", types.declared_with(result))) & CONVERTED else ""
        self._names = _own_names(hints, reserved={*reserved, *(words if self._returns else ())})
        self._parameters = [f"{self._names[at]}: {hint}{'' if at in required else ' = OMITTED'}" for at, hint in hints.items()]
        taken = self._names.values()
        self._key = _free_name("key_of_call" if "idempotency_key" in taken else "idempotency_key", taken)
        self._doc = _doc(str(entry.get("description") or f"Calls {self._procedure}."))

    def _signature(self, *more: str) -> str:
        given = [*self._parameters, *more]
        return ", *, " + ", ".join(given) if given else ""

    def call(self) -> str:
        """The static method that makes a `Call`."""
        signature = self._signature().removeprefix(", ")
        passed = ", ".join(f"{at!r}: {own}" for at, own in self._names.items())
        return (
            f"\n    @staticmethod\n    def {self._name}({signature}) -> Call[{self._result}]:\n        {self._doc}\n"
            f"        return Call({self._procedure!r}, _given({{{passed}}}))\n"
        )

    def of_client(self, name: str, *, is_async: bool) -> str:
        """The method that makes the call."""
        passed = ", ".join(f"{own}={own}" for own in self._names.values())
        returns = f", returns={self._returns}" if self._returns else ""
        define, wait = ("async def", "await ") if is_async else ("def", "")
        key = f"{self._key}: str | NewKey | None = NEW_KEY"
        invoked = f"{wait}self.client.invoke({name}Calls.{self._name}({passed}), idempotency_key={self._key}{returns})"
        value = f"({invoked}).value" if is_async else f"{invoked}.value"
        end = f"        {invoked}\n" if self._result == "None" else f"        return {value}\n"
        return f"\n    {define} {self._name}(self{self._signature(key)}) -> {self._result}:\n        {self._doc}\n{end}"


class _WireTypes:
    """Python types of JSON schemas; objects with named members are declared once each."""

    def __init__(self, taken: Collection[str]) -> None:
        self.declarations: list[str] = []
        self._taken = taken  # names that are no object's
        self._declared: dict[str, Schema] = {}

    def declared_with(self, hint: str) -> str:
        """A hint with the declarations that it leads to."""
        texts, seen = [hint], set[str]()
        for text in texts:
            for name in set(re.findall(r"\w+", text)) & self._declared.keys() - seen:
                seen.add(name)
                texts += [each for each in self.declarations if re.search(rf"\b{name}(\(TypedDict\)| = TypedDict)", each)]
        return " ".join(texts)

    def hint(self, schema: Schema, wanted: str, *, exact: bool = True) -> str:
        """The Python type of a schema; `wanted` names an object without a title. `exact`: texts have Python's own types."""
        exact = exact and "x-written-by" not in schema
        if parts := schema.get("anyOf") or schema.get("oneOf"):
            return " | ".join(dict.fromkeys(self.hint(part, wanted, exact=exact) for part in parts))
        if "enum" in schema or "const" in schema:
            return f"Literal[{', '.join(map(repr, schema.get('enum', [schema.get('const')])))}]"
        kind = schema.get("type")
        if kind == "array":
            return self._array(schema, wanted, exact=exact)
        if kind == "object":
            return self._object(schema, wanted, exact=exact)
        if kind == "string" and exact:
            return "bytes" if "contentEncoding" in schema else FORMATS.get(schema.get("format", ""), "str")
        return SCALARS.get(str(kind), "Any")

    def _array(self, schema: Schema, wanted: str, *, exact: bool) -> str:
        if "prefixItems" in schema:
            return f"tuple[{', '.join(self.hint(part, wanted, exact=exact) for part in schema['prefixItems'])}]"
        return f"list[{self.hint(schema.get('items', {}), wanted, exact=exact)}]"

    def _object(self, schema: Schema, wanted: str, *, exact: bool) -> str:
        if not schema.get("properties"):
            inner = schema.get("additionalProperties")
            return f"dict[str, {self.hint(inner, wanted, exact=exact) if isinstance(inner, dict) else 'Any'}]"
        name = self._free(_identifier(re.sub(r"\W|^_+", "", str(schema.get("title", ""))) or wanted), schema)
        if name not in self._declared:
            self._declared[name] = schema
            members = {
                at: self.hint(part, name + _identifier(at).title(), exact=exact) for at, part in schema["properties"].items()
            }
            self.declarations.append(_typed_dict(name, members, set(schema.get("required", ()))))
        return name

    def _free(self, name: str, schema: Schema) -> str:
        """The name, or the next one with a number that nothing else has."""
        names = chain([name], (f"{name}{number}" for number in count(2)))
        return next(each for each in names if each not in self._taken and self._declared.get(each, schema) == schema)


def _typed_dict(name: str, members: Mapping[str, str], required: Iterable[str]) -> str:
    hints = {at: hint if at in required else f"NotRequired[{hint}]" for at, hint in members.items()}
    words = set(re.findall(r"\w+", " ".join(hints.values())))  # a member of such a name hides the type from those below it
    if all(at == _identifier(at) and at not in words for at in members):
        lines = "".join(f"    {at}: {hint}\n" for at, hint in hints.items())
        return f'\n\nclass {name}(TypedDict):\n    """An object of the wire."""\n\n{lines}'
    inner = ", ".join(f"{at!r}: {hint}" for at, hint in hints.items())
    return f'\n\n{name} = TypedDict("{name}", {{{inner}}})\n'


def _own_names(names: Iterable[str], *, reserved: Collection[str]) -> dict[str, str]:
    """Every name as the module has it: as it is, unless Python or the module has another use for it."""
    own = {name: _identifier(name) for name in names}
    taken = {*reserved, *own}
    for name, identifier in own.items():
        if name != identifier or name in reserved:
            own[name] = _free_name(identifier, taken)
            taken.add(own[name])
    return own


def _free_name(name: str, taken: Collection[str]) -> str:
    return next(each for each in (name + "_" * more for more in count()) if each not in taken)


def _identifier(name: str) -> str:
    """Python renames `__x` in a class, so that it begins with one underscore here."""
    text = re.sub(r"^__+|^(?=\d|$)", "_", re.sub(r"\W", "_", name))
    return f"{text}_" if keyword.iskeyword(text) else text


def _escaped(text: str) -> str:
    """What a docstring of this text holds: nothing in it ends the docstring, or is a character that Python does not take."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\0", "\\0")


def _doc(text: str) -> str:
    """A docstring of the text, on lines of its own where it has several."""
    lines = [line.rstrip() for line in _escaped(text).splitlines()]
    if lines[-1].endswith('"'):
        lines[-1] += " "
    return (
        '"""' + "\n".join([lines[0], *(line if not line or line[0] == " " else f"        {line}" for line in lines[1:])]) + '"""'
    )
