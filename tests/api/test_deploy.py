"""The body of `POST /v1/deploy`, read strictly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.problem import Problem
from cmdlog.api.routes.deploy import bundle_in
from tests.api.conftest import local_token
from tests.node.deployed import make_version

Post = Callable[..., Any]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "bundle"),
        ({"rollback": False}, "bundle"),
        ({"rollback": True, "bundle": {}}, "bundle"),
        ({"rollback": 1}, "rollback"),
        ({"rollback": True, "to": 0}, "to"),
        ({"rollback": True, "to": True}, "to"),
        ({"bundle": {}, "to": 1}, "to"),
        ({"bundle": "x"}, "bundle"),
        ({"rollback": True, "plan": "yes"}, "plan"),
        ({"rollback": True, "migrate": None}, "migrate"),
        ({"rollback": True, "force": True}, "force"),
    ],
)
def test_a_body_at_fault_names_its_fields(app: Api, post: Post, given: dict[str, Any], field: str) -> None:
    """And nothing is deployed: the fake node has no deployer."""
    answer = post("/v1/deploy", orjson.dumps(given), headers=[("Authorization", f"Bearer {local_token(app)}")])
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")
    assert field in [problem["field"] for problem in answer.json()["problems"]]


def test_a_bundle_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    """One whose content is not what its hash names is refused as what it is."""
    bundle = make_version(tmp_path, 1)[1]
    value = orjson.loads(bundle.to_bytes())
    assert bundle_in(value) == bundle
    with pytest.raises(Problem) as refused:
        bundle_in({**value, "target": "other:db"})
    assert refused.value.code == "bundle_refused"
