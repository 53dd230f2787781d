"""The description: every route, the schemas of each procedure's call, roles and codes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import ADMIN, INVOKE, PROCEDURES, READ, TABLE
from cmdlog.api.routes.openapi import Description, add_schema, with_whole_limits
from cmdlog.node.slot_map import make_routes
from tests.api.every_type import db

ROUTES = make_routes(db)


def describe(*, required: bool = True, ready: bool = True) -> dict[str, Any]:
    """The document as it is sent."""
    node = SimpleNamespace(routes=ROUTES) if ready else None
    service: Any = SimpleNamespace(gatekeeper=SimpleNamespace(required=required), maybe_node=node)  # as far as it asks
    whole: dict[str, Any] = orjson.loads(orjson.dumps(Description(service, version="7").get()))
    return whole


def test_schemas_of_a_call_are_those_of_its_procedure() -> None:
    """Parameters and answer have the catalog's schemas, and each object within them is a schema of its own."""
    schemas = describe()["components"]["schemas"]
    point = ROUTES["nested"].procedure.json_schema()["properties"]["point"]
    nested = schemas["NestedParameters"]
    assert schemas["Point"] == point
    assert nested["properties"]["point"] == {"$ref": "#/components/schemas/Point"}
    assert nested["properties"]["points"] == {"type": "array", "items": {"$ref": "#/components/schemas/Point"}}
    assert nested["required"] == ROUTES["nested"].procedure.json_schema()["required"]
    assert schemas["PutParameters"] == {"title": "PutParameters", **ROUTES["put"].procedure.json_schema()}
    assert schemas["CountAnswer"]["properties"]["partition"] == {"type": "null"}
    assert schemas["GetAnswer"]["properties"].keys() == {"txn_id", "partition", "result", "as_of", "as_of_time"}


def test_two_objects_of_one_name_are_both_described() -> None:
    """The second one stays where it is used."""
    schemas: dict[str, Any] = {}
    for kind in ("integer", "string"):
        inner = {"type": "object", "title": "Part", "properties": {"x": {"type": kind}}}
        add_schema(schemas, f"Whole{kind}", {"type": "object", "properties": {"part": inner}})
    assert schemas["Wholeinteger"]["properties"]["part"] == {"$ref": "#/components/schemas/Part"}
    assert schemas["Wholestring"]["properties"]["part"]["properties"] == {"x": {"type": "string"}}


def test_limits_of_integers_are_exact() -> None:
    """The document allows what the gate allows, to the last integer, though FastAPI makes floats of limits."""
    schemas = describe()["components"]["schemas"]
    whole, number = schemas["KeepParameters"]["properties"]["whole"], schemas["BatchCall"]["properties"]["number"]
    assert (repr(whole["minimum"]), repr(whole["maximum"])) == (str(-(1 << 63)), str((1 << 63) - 1))
    assert repr(number["exclusiveMaximum"]) == str(1 << 63)
    assert with_whole_limits({"a": [0.5, 599.0]}) == {"a": [0.5, 599]}


def test_security_states_every_role_that_suffices() -> None:
    """Each route names its roles as alternatives, by the scheme of the tokens; without a token file those of the owner alone."""
    described = describe()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for entry in TABLE:
        if entry.kind != "call":
            assert described["paths"][entry.path][entry.method.lower()]["security"] == [{"token": [role]} for role in entry.needs]
    of_call = {name: described["paths"][PROCEDURES + name]["post"]["security"] for name in ("put", "get")}
    assert of_call == {"put": [{"token": [INVOKE]}], "get": [{"token": [READ]}, {"token": [INVOKE]}, {"token": [ADMIN]}]}
    local = describe(required=False)["paths"]
    secured = {
        operation["operationId"] for methods in local.values() for operation in methods.values() if "security" in operation
    }
    assert secured == {entry.name for entry in TABLE if entry.roles == {ADMIN}}


def test_every_route_and_code_is_described() -> None:
    """The table's routes, one per procedure, and each code of a problem below its status."""
    described = describe()
    paths = {entry.path for entry in TABLE if entry.kind != "call"} | {PROCEDURES + name for name in ROUTES}
    assert described["paths"].keys() == paths
    responses = described["components"]["responses"]
    stated = {code for name, response in responses.items() for code in response["description"].split(", ")}
    of_routes = {int(name.removeprefix("Problem")) for name in responses}
    assert stated == {code for code, (status, _) in CODES.items() if status in of_routes}
    assert not any(path.startswith(PROCEDURES) for path in describe(ready=False)["paths"])
