"""The description is FastAPI's own: nothing in it is spelled by hand but the answers that FastAPI has no word for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import ADMIN, INVOKE, PROCEDURES, READ, TABLE
from cmdlog.api.routes.fastapi_routes import procedure_route, table_routes
from cmdlog.api.routes.openapi import ABOUT, HEADERS, Description, problem_responses, with_whole_limits
from cmdlog.node.slot_map import make_routes
from tests.api.every_type import db

BY_HAND = {"headers", "responses"}  # of the components
ROUTES = make_routes(db)


def service(*, required: bool, ready: bool = True) -> Any:
    """As much of a service as the description asks for."""
    node = SimpleNamespace(routes=ROUTES) if ready else None
    return SimpleNamespace(gatekeeper=SimpleNamespace(required=required), maybe_node=node)


def describe(*, required: bool = True, ready: bool = True) -> dict[str, Any]:
    """The document as it is sent."""
    made = Description(service(required=required, ready=ready), version="7").get()
    whole: dict[str, Any] = orjson.loads(orjson.dumps(made))
    return whole


def of_fastapi(*, required: bool = True) -> dict[str, Any]:
    """What an application of FastAPI says that has the same routes, and nothing from here."""
    app = FastAPI(title="cmdlog", version="7", summary="Durable stored procedures", description=ABOUT, openapi_url=None)
    app.router.routes += table_routes(required=required)
    app.router.routes += [procedure_route(route, required=required) for route in ROUTES.values()]
    whole: dict[str, Any] = orjson.loads(orjson.dumps(app.openapi()))
    return whole


@pytest.mark.parametrize("required", [True, False])
def test_document_is_the_one_of_fastapis_generator(required: bool) -> None:
    """FastAPI makes paths, models and security; what is added to it are two kinds of components, which it refers to."""
    described, expected = describe(required=required), of_fastapi(required=required)
    by_hand = {kind: described["components"].pop(kind) for kind in BY_HAND}
    assert described == expected
    assert by_hand == {"headers": HEADERS, "responses": orjson.loads(orjson.dumps(problem_responses()))}
    assert not BY_HAND & expected["components"].keys()


class PointHere(BaseModel):
    """A value of two parts."""

    model_config = ConfigDict(title="Point", extra="forbid")
    x: int = Field(ge=-(1 << 63), lt=1 << 63)
    label: str = "origin"


class NestedHere(BaseModel):
    """What a user of FastAPI would write for the parameters of `nested`."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(json_schema_extra={"format": "uuid"})
    point: PointHere
    points: list[PointHere]
    pair: tuple[Any, str]
    named: dict[str, list[Any]] | None = None


def test_models_are_those_that_one_writes_by_hand() -> None:
    """Members, required ones, defaults, unions and references of a procedure's model are as in a model that FastAPI is given."""
    app = FastAPI()

    @app.post("/nested")
    def call_nested(body: NestedHere) -> None: ...

    by_hand = app.openapi()["components"]["schemas"]
    models = describe()["components"]["schemas"]
    renamed = orjson.loads(orjson.dumps(by_hand["NestedHere"]).replace(b"PointHere", b"Point"))
    for text in ("title", "description"):
        renamed.pop(text)
        models["NestedParameters"].pop(text, None)
    assert without_limits(models["NestedParameters"]) == renamed
    assert models["Point"] == by_hand["PointHere"]


def without_limits(schema: Any) -> Any:
    """Without what integers are: a hand-written `Any` has no such schema."""
    if isinstance(schema, dict):
        return {} if schema.get("type") == "integer" else {name: without_limits(part) for name, part in schema.items()}
    return [without_limits(part) for part in schema] if isinstance(schema, list) else schema


def test_limits_of_integers_are_exact() -> None:
    """The document allows what the gate allows, to the last integer, though FastAPI makes floats of limits."""
    properties = describe()["components"]["schemas"]["KeepParameters"]["properties"]
    whole = properties["whole"]
    assert (repr(whole["minimum"]), repr(whole["exclusiveMaximum"])) == (str(-(1 << 63)), str(1 << 63))
    assert "maximum" not in whole
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
