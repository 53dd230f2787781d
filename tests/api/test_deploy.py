"""The body of `POST /v1/deploy`, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.api.gate.problem import Problem
from cmdlog.api.routes.deploy import DeployOrder, read_deploy
from tests.node.deployed import make_version


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
def test_a_body_at_fault_names_its_fields(given: dict[str, Any], field: str) -> None:
    """And nothing is deployed."""
    with pytest.raises(Problem) as refused:
        read_deploy(given)
    assert refused.value.code == "invalid_parameters"
    assert field in str(refused.value.members())


def test_a_bundle_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    """One whose content is not what its hash names is refused as what it is."""
    bundle = make_version(tmp_path, 1)[1]
    value = orjson.loads(bundle.to_bytes())
    assert read_deploy({"bundle": value, "plan": True}) == DeployOrder(bundle, None, migrate=False, plan=True)
    assert read_deploy({"rollback": True, "to": 3, "migrate": True}) == DeployOrder(None, 3, migrate=True, plan=False)
    with pytest.raises(Problem) as refused:
        read_deploy({"bundle": {**value, "target": "other:db"}})
    assert refused.value.code == "bundle_refused"
