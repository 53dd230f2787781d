"""An application in two versions: the same procedures, and types that a deploy has changed in every way that a retry outlives.

One rule: a request that the first version takes, the second one takes too. What is left out of it, each version fills in.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Fields = Mapping[str, str]  # name -> annotation, and default

MADE: Final = "str = field(default_factory=lambda: str(uuid.uuid4()))"
CHANGES: Final[Mapping[str, tuple[Fields, Fields]]] = {
    "made": ({"item": "str", "no": MADE}, {"item": "str", "no": MADE}),
    "clock": ({"item": "str", "at": "float = field(default_factory=time.time)"},) * 2,
    "gained": ({"item": "str"}, {"item": "str", "note": "str = ''"}),
    "gained_made": ({"item": "str"}, {"item": "str", "no": MADE}),
    "gained_optional": ({"item": "str"}, {"item": "str", "note": "str | None = None"}),
    "gained_list": ({"item": "str"}, {"item": "str", "tags": "list[str] = field(default_factory=list)"}),
    "other_default": ({"item": "str", "note": "str = 'x'"}, {"item": "str", "note": "str = 'y'"}),
    "no_longer_made": ({"item": "str", "no": MADE}, {"item": "str", "no": "str = 'none'"}),
    "other_order": (
        {"item": "str", "size": "int = 1", "note": "str = ''"},
        {"item": "str", "note": "str = ''", "size": "int = 1"},
    ),
    "wider": ({"item": "str", "size": "int = 1"}, {"item": "str", "size": "float | None = 1.0"}),
}
"""What the fields of a type are before and after the deploy."""

KINDS: Final[Mapping[str, str]] = {
    "data": "@dataclass(frozen=True)\nclass {name}:\n",
    "keyword": "@dataclass(frozen=True, slots=True, kw_only=True)\nclass {name}:\n",
    "model": "class {name}(BaseModel):\n    model_config = ConfigDict(frozen=True)\n",
}
PLACES: Final[Mapping[str, tuple[str, str]]] = {
    "itself": ("{name}", "{made}"),
    "list": ("list[{name}]", "[{made}, {made}]"),
    "optional": ("{name} | None", "{made}"),
    "dict": ("dict[str, {name}]", '{{"a": {made}}}'),
    "pair": ("tuple[int, {name}]", "(1, {made})"),
    "nested": ("Around{name}", "Around{name}(inner={made})"),
}
HEAD: Final = """import time
import uuid
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Column, Integer, String

from cmdlog import Database

db = Database("retried")
runs = db.table("runs", Column("name", String, primary_key=True), Column("count", Integer), partition_by="name")


def _run(tx, name):
    if not tx.execute(runs.update().where(runs.c.name == name).values(count=runs.c.count + 1)).rowcount:
        tx.execute(runs.insert(), name=name, count=1)
    return str(tx.txn_id)


@db.procedure(partition_by="name", read_only=True)
def count(tx, name: str) -> int:
    return tx.execute(runs.select().where(runs.c.name == name)).one().count
"""
PROCEDURE: Final = """

@db.procedure(partition_by="name")
def {procedure}(tx, {parameters}) -> str:
    return _run(tx, name)
"""
TOP: Final[Mapping[str, tuple[str, str]]] = {
    "top_order": ("name: str, one: int, two: str", "two: str, name: str, one: int"),
    "top_gained": ("name: str, one: int", "name: str, one: int, two: str = 'x'"),
    "top_default": ("name: str, one: int = 1, two: str = 'x'", "name: str, two: str = 'y', one: int = 2"),
    "top_wider": ("name: str, one: int", "name: str, one: float"),
}
"""The same for parameters of the procedure itself."""


@dataclass(frozen=True)
class Request:
    """A call that both versions take: as JSON, and as Python that makes its objects."""

    procedure: str
    params: Mapping[str, Any]  # beside `name`
    python: str  # a dict of them; "" where the JSON is what a Python caller gives

    def other(self) -> dict[str, Any]:
        """The parameters of another request."""
        return {name: _changed(value) for name, value in self.params.items()}


def requests() -> list[Request]:
    """One for each kind of type, change and place, and one for each change of parameters."""
    found = [_request(*case) for case in itertools.product(KINDS, CHANGES, PLACES)]
    plain: dict[str, dict[str, Any]] = {"top_order": {"one": 1, "two": "b"}, "top_default": {}}
    return [*found, *(Request(name, plain.get(name, {"one": 1}), "") for name in TOP)]


def _request(kind: str, change: str, place: str) -> Request:
    name, sent = f"{kind}_{change}".title().replace("_", ""), {"item": "a"}
    if change == "other_order":
        sent = {"item": "a", "size": 2}  # type: ignore[dict-item]
    given = ", ".join(f"{field}={value!r}" for field, value in sent.items())
    value: Any = {"list": [sent, sent], "dict": {"a": sent}, "pair": [1, sent], "nested": {"inner": sent}}.get(place, sent)
    python = PLACES[place][1].format(name=name, made=f"{name}({given})")
    return Request(f"{kind}_{change}_{place}", {"order": value}, f'{{"order": {python}}}')


def _changed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _changed(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner) for inner in value]
    return value + 1 if isinstance(value, int) else value + "!"


def program(version: int) -> str:
    """The source of version 1 or 2."""
    parts = [HEAD]
    for kind, (change, fields) in itertools.product(KINDS, CHANGES.items()):
        name = f"{kind}_{change}".title().replace("_", "")
        parts.append("\n\n" + _class(kind, name, fields[version - 1]))
        parts.append("\n\n" + _class(kind, f"Around{name}", {"inner": name, **({"more": "int = 0"} if version == 2 else {})}))
        for place, (hint, _) in PLACES.items():
            parameters = f"name: str, order: {hint.format(name=name)}"
            parts.append(PROCEDURE.format(procedure=f"{kind}_{change}_{place}", parameters=parameters))
    parts += [PROCEDURE.format(procedure=name, parameters=both[version - 1]) for name, both in TOP.items()]
    return "".join(parts)


def _class(kind: str, name: str, fields: Fields) -> str:
    lines = [f"    {field}: {hint}\n" for field, hint in fields.items()]
    text = KINDS[kind].format(name=name) + "".join(lines)
    return text.replace("field(", "Field(") if kind == "model" else text


def write(folder: Path, version: int) -> None:
    """The module `retried` of that version."""
    (folder / "retried.py").write_text(program(version))


def spelled(value: Any, chance: random.Random) -> str:
    """JSON of the value, spelled in one of its many ways."""
    if isinstance(value, dict):
        members = [f"{spelled(name, chance)}{_gap(chance)}:{spelled(inner, chance)}" for name, inner in value.items()]
        chance.shuffle(members)
        return "{" + _gap(chance) + ",".join(members) + _gap(chance) + "}"
    if isinstance(value, list):
        return "[" + ("," + _gap(chance)).join(spelled(inner, chance) for inner in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\u{ord(one):04x}" if chance.random() < 0.3 else one for one in value) + '"'
    return str(value)


def _gap(chance: random.Random) -> str:
    return " " * chance.randrange(3)
