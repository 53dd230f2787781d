"""Models: what the routes answer fits them, and a body that does not is refused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from cmdlog.api.gate.route_table import CHANGES
from cmdlog.api.routes.cluster_routes import ChangeRequest, RecoveryRequest
from cmdlog.api.routes.response_models import (
    BatchCall,
    BatchRefusal,
    BatchResult,
    ProblemDetails,
    QueryRequest,
    SnapshotRequest,
)
from cmdlog.api.routes.strict_route import router
from cmdlog.node.slot_map import describe_routes, make_routes
from tests.api.every_type import db
from tests.api.fake_desk import clustered

Post = Callable[..., Any]
ANSWERS = {route.name: route.response_model for route in router.routes if isinstance(route, APIRoute)}
ANSWERS["batch"] = BatchResult | BatchRefusal


@pytest.mark.parametrize("name", ["procedures", "status", "snapshots", "healthz", "readyz", "openapi"])
def test_answers_fit_their_models(node: Any, fetch: Post, name: str) -> None:
    """Each 200 of a route without a body validates against the model that describes it."""
    node.catalog = lambda: describe_routes(make_routes(db))
    path = f"/v1/{name}" if name in ("procedures", "status", "snapshots") else {"openapi": "/openapi.json"}.get(name, f"/{name}")
    assert validated(name, fetch(path).body)


def test_answers_to_bodies_fit_their_models(post: Post) -> None:
    """Rows, snapshots with and without a point, and both kinds of lines."""
    assert validated("query", post("/v1/query", b'{"sql": "select 1"}').body)
    for body in (b"", b'{"consistent": true}'):
        assert validated("take_snapshot", post("/v1/snapshots", body).body)
    lines = post("/v1/batch", b'{"procedure": "get", "params": {"item": 1}}\n{"procedure": "none"}\n').body.splitlines()
    assert [type(validated("batch", line)).__name__ for line in lines] == ["BatchResult", "BatchRefusal"]


def test_answers_of_a_member_fit_their_models(node: Any, post: Post, fetch: Post) -> None:
    """What operators see and change."""
    clustered(node)
    assert validated("members", fetch("/v1/cluster/members").body).members[0].state == "member"
    assert validated("copies", fetch("/v1/cluster/copies").body).copies[0].node == 4
    for change in CHANGES:
        assert validated(change, post(f"/v1/cluster/members/4/{change}").body).plan.stages[1].quorum == 3
    assert validated("unsafe_recover", post("/v1/cluster/unsafe-recover", b'{"yes_lose": true}').body).node == 1


def test_problems_fit_their_model(node: Any, post: Post, fetch: Post) -> None:
    """Every member that a problem may have is described, also those of a server that is not ready."""
    problems = [fetch("/nothing"), post("/v1/query"), post("/v1/procedures/put", b'{"item": "x", "y": 1}')]
    node.stalled = [{"partitions": list(range(node.settings.partitions)), "procedure": "put", "message": "hangs"}]
    problems.append(fetch("/readyz"))
    node.ready = False
    node.troubles = SimpleNamespace(disk_full=lambda: {"path": "/tmp", "free_bytes": 1, "reason": "full"})
    problems.append(fetch("/readyz"))
    found = [ProblemDetails.model_validate_json(answer.body) for answer in problems]
    assert [problem.code for problem in found] == [
        "not_found", "invalid_parameters", "invalid_parameters", "not_ready", "disk_full",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (QueryRequest, {"sql": "select 1", "partitions": 1}),
        (QueryRequest, {"sql": ""}),
        (QueryRequest, {"sql": "  "}),
        (SnapshotRequest, {"partition": 0}),
        (BatchCall, {"params": {}}),
        (ChangeRequest, {"base": -1}),
        (ChangeRequest, {"base": 1.5}),
        (ChangeRequest, {"base": 1 << 63}),
        (ChangeRequest, {"base": True}),
        (ChangeRequest, {"peer": 1}),
        (ChangeRequest, {"force": 1}),
        (ChangeRequest, {"plan": None}),
        (ChangeRequest, {"nodes": 1}),
        (RecoveryRequest, {"yes_lose": 1}),
        (RecoveryRequest, {"force": "x"}),
        (RecoveryRequest, {"survivors": [{"node": 1}]}),
        (RecoveryRequest, {"survivors": [{"node": 0, "ends": {}}]}),
        (RecoveryRequest, {"survivors": [{"node": 2, "ends": {"x": [1, 2]}}]}),
        (RecoveryRequest, {"survivors": [{"node": 2, "ends": {"0": [1]}}]}),
        (RecoveryRequest, {"survivors": [{"node": 2, "ends": {"0": [1, -2]}}]}),
    ],
)
def test_models_of_bodies_convert_nothing(model: type[BaseModel], body: dict[str, Any]) -> None:
    """Unknown members, values of another type or beyond their limits, and what is missing are refused."""
    with pytest.raises(ValidationError):
        model.model_validate(body)


def validated(name: str, body: bytes) -> Any:
    """The answer as its model."""
    return TypeAdapter(ANSWERS[name]).validate_json(body)
