"""Models of the operators' routes: they refuse what the routes refuse."""

from __future__ import annotations

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.request import json_object
from cmdlog.api.routes.cluster.cluster_models import ChangeRequest, RecoveryRequest
from cmdlog.api.routes.cluster.cluster_routes import read_change, read_recovery

CHANGES = [
    {}, {"peer": None}, {"peer": "h:1", "client": "http://h"}, {"base": 0}, {"base": None}, {"force": True, "plan": False},
    {"peer": 1}, {"base": -1}, {"base": 1.5}, {"base": 1 << 63}, {"force": 1}, {"plan": None}, {"other": 1},
]  # fmt: skip
RECOVERIES = [
    {}, {"yes_lose": True, "survivors": [{"node": 2, "ends": {"0": [1, 2]}}]}, {"survivors": []}, {"survivors": [{"node": 2}]},
    {"yes_lose": 1}, {"survivors": [{"node": 2, "ends": {"x": [1, 2]}}]}, {"survivors": [{"node": 2, "ends": {"0": [1]}}]},
    {"survivors": [{"node": 2, "ends": {"0": [1, -2]}}]}, {"survivors": [{"node": 0, "ends": {}}]}, {"force": "x"},
]  # fmt: skip


def fits(model: type[BaseModel], value: object) -> bool:
    """Whether the description allows the body."""
    try:
        model.model_validate_json(orjson.dumps(value), strict=True)
    except ValidationError:
        return False
    return True


def is_read(value: object, *, recovery: bool) -> bool:
    """Whether the route takes the body."""
    try:
        given = json_object(orjson.dumps(value))
        if recovery:
            read_recovery(given)
        else:
            read_change(given)
    except Problem:
        return False
    return True


@pytest.mark.parametrize("value", CHANGES, ids=str)
def test_description_of_a_change_is_what_is_read(value: object) -> None:
    """A body that the description allows is taken, and no other one."""
    assert fits(ChangeRequest, value) == is_read(value, recovery=False)


@pytest.mark.parametrize("value", RECOVERIES, ids=str)
def test_description_of_a_recovery_is_what_is_read(value: object) -> None:
    """The same for the dangerous one."""
    assert fits(RecoveryRequest, value) == is_read(value, recovery=True)
