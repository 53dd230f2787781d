"""Refusals of a deploy as callers meet them."""

from __future__ import annotations

import inspect
from typing import Any

from cmdlog.api.gate.problem import CODES
from cmdlog.api.routes.cluster_routes import CODE_OF
from cmdlog.node.deploying import deploy_errors
from cmdlog.operator_error import OperatorError


def test_each_refusal_has_a_code_on_the_wire_and_says_what_to_do() -> None:
    """Whatever a new one is called."""
    every: list[Any] = [one for _, one in inspect.getmembers(deploy_errors, inspect.isclass)]
    found = [one for one in every if one is not OperatorError]
    assert len(found) >= 7
    assert [one for one in found if CODE_OF.get(one.kind, one.kind) not in CODES or not one.hint] == []
