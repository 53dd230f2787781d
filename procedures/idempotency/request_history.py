"""How a retry is recognized after its procedure's parameters were reordered, renamed or added.

A key's outcome is stored with a hash of what its caller sent (`wire.sent_request`): the names of the parameters and their values.
A CATALOG record states, for each procedure whose signature changed, the former ones, and a retry is also compared with the hashes
that its request would have had under those.

One rule: what is compared depends on the CATALOG record of the batch alone.

Under a name that no procedure can have, the same member states which columns may take less than before (`JUDGED`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import orjson

from procedures.declaration.procedure import Procedure
from procedures.wire.sent_request import given_hash

FORMER_MAX: Final = 8  # signatures of a procedure that are remembered; keys live a day, deploys are rarer than that
JUDGED: Final = "judged columns"  # with a space, it is the name of no procedure: table → columns whose rows are judged first
Stated = Mapping[str, Any]  # of one procedure, as the record has it: {"former": [{"parameters", "defaults"}]}


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters as they once were."""

    parameters: tuple[str, ...]
    defaults: Mapping[str, Any]  # wire form, of those that have one

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(tuple(value["parameters"]), value["defaults"])

    def to_json(self) -> dict[str, Any]:
        return {"parameters": list(self.parameters), "defaults": dict(self.defaults)}


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What a catalog version says beside its code."""

    partitions: int | None = None  # how many there are; None: rows are not judged by the partition they belong to
    requests: Mapping[str, Stated] = field(default_factory=dict)  # by procedure: its former signatures; and `JUDGED`

    @property
    def judged(self) -> Mapping[str, Sequence[str]] | None:
        """Columns that may take less than those of the version before it; None where that is not known."""
        return self.requests.get(JUDGED)


def defaults_of(procedure: Procedure) -> dict[str, Any]:
    """Wire form of the defaults that its parameters have."""
    return {parameter.name: parameter.default for parameter in procedure.parameters if not parameter.required}


def next_requests(procedures: Sequence[Procedure], before: Mapping[str, Any] | None) -> dict[str, Stated]:
    """What the next version's record says, given the value of the record before it. Only of procedures with a history."""
    known = requests_of(before or {})
    found: dict[str, Stated] = {}
    for stated in (before or {}).get("procedures", ()):
        procedure = next((one for one in procedures if one.name == stated["name"]), None)
        if procedure is None:
            continue
        now = Signature(procedure.parameter_names, defaults_of(procedure))
        last = Signature(tuple(stated["parameters"]), stated.get("defaults", {}))
        former = [Signature.of_json(value) for value in known.get(procedure.name, {"former": []})["former"]]
        if last != now:
            former = [one for one in (last, *former) if one != now][:FORMER_MAX]
        if former:
            found[procedure.name] = {"former": [one.to_json() for one in former]}
    return found


def requests_of(value: Mapping[str, Any]) -> Mapping[str, Stated]:
    """What the value of a CATALOG record says; it is part of the bundle's text, which every site gets."""
    with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
        requests: Mapping[str, Stated] = orjson.loads(value["bundle"]).get("requests", {})
        return requests
    return {}


def renamed_hashes(procedure: Procedure, requests: Mapping[str, Stated], params: Sequence[Any]) -> Iterator[int]:
    """The hashes of what may have been sent for this request under the former signatures: with or without their defaults."""
    stated = requests.get(procedure.name)
    for value in stated["former"] if stated else ():
        signature = Signature.of_json(value)
        for former in _former_params(procedure, signature, params):
            sent = dict(zip(signature.parameters, former, strict=True))
            yield given_hash(procedure.name, sent)
            defaults = signature.defaults
            yield given_hash(procedure.name, {n: v for n, v in sent.items() if n not in defaults or v != defaults[n]})


def _former_params(procedure: Procedure, was: Signature, params: Sequence[Any]) -> Iterator[list[Any]]:
    """The request by position of a former signature: by name, and what is left of both sides is a renamed parameter.

    A parameter that a client need not give may have had another default, or none: both readings are tried.
    """
    given, defaults = dict(zip(procedure.parameter_names, params, strict=True)), defaults_of(procedure)
    came = [name for name in given if name not in was.parameters]
    gone = [name for name in was.parameters if name not in given]
    left_to_default = {name for name in given if name in defaults and given[name] == defaults[name]}
    for renamed in ({}, dict(zip(gone, came, strict=False))) if came and gone else ({},):
        if not left_to_default.issuperset(set(came) - set(renamed.values())):
            continue  # a parameter that did not exist was given a value
        for swapped in (frozenset[str](), left_to_default):
            values = {**was.defaults, **{name: given[name] for name in was.parameters if name in given and name not in swapped}}
            values |= {name: was.defaults.get(name, given[name]) for name in was.parameters if name in swapped}
            values |= {old: given[new] for old, new in renamed.items()}
            if values.keys() >= set(was.parameters):
                yield [values[name] for name in was.parameters]
