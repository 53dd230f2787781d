"""The plan of a request: its stages, how many voters may be lost in each, and what it warns of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.membership.member_requests import MemberRequest
from cmdlog.cluster.membership.operator_desk import RequestKind
from cmdlog.cluster.membership.quorum_forecast import forecast_request
from tests.cluster.membership.plan_model import Model, cluster_of

WHERE = ("127.0.0.1:7009", "http://127.0.0.1:8009")


def stages(model: Model, request: MemberRequest) -> list[tuple[int, int, int]]:
    """Of each stage the voters, the quorum, and how many live ones may be lost."""
    return [(len(of["voters"]), of["quorum"], of["survives"]) for of in forecast_request(model.view, request)["stages"]]


@pytest.mark.parametrize(
    ("kind", "node", "expected"),
    [
        ("remove", 3, [(3, 2, 1), (2, 2, 0)]),
        ("retire", 3, [(3, 2, 1), (2, 2, 0)]),
        ("replace", 3, [(3, 2, 1), (2, 2, 0), (2, 2, 0), (3, 2, 1)]),
        ("add", 4, [(3, 2, 1), (3, 2, 1), (4, 3, 1)]),
        ("transfer", 2, [(3, 2, 1)]),
    ],
)
def test_stages_of_every_request(kind: RequestKind, node: int, expected: list[tuple[int, int, int]]) -> None:
    """Of three voters, all of them heard from."""
    request = MemberRequest(kind, node, *WHERE) if kind == "add" else MemberRequest(kind, node)
    assert stages(cluster_of(3), request) == expected


def test_a_dead_node_costs_nothing_more_when_it_is_removed() -> None:
    """It could not have helped."""
    model = replace(cluster_of(3), up=frozenset({1, 2}))
    assert stages(model, MemberRequest("remove", 3)) == [(3, 2, 0), (2, 2, 0)]
    warnings = forecast_request(model.view, MemberRequest("remove", 3))["warnings"]
    assert any("start its old disk nowhere again" in text for text in warnings)


def test_a_plan_says_what_would_refuse_it() -> None:
    """As the request itself would."""
    told = forecast_request(replace(cluster_of(3), up=frozenset({1, 2})).view, MemberRequest("remove", 2))
    assert told["refusal"]["code"] == "quorum_at_risk"
    assert told["stages"][1]["survives"] == -1
    assert any("nothing is committed" in text for text in told["warnings"])


def test_the_last_whole_copy_is_warned_of() -> None:
    """Before it is the only one."""
    told = forecast_request(replace(cluster_of(3), behind=frozenset({1})).view, MemberRequest("remove", 2))
    assert told["refusal"] is None
    assert "without node 2 node 3 holds the only whole copy" in told["warnings"]
    forced = forecast_request(cluster_of(3).view, MemberRequest("remove", 2, force=True))["warnings"]
    assert "the use of --force is recorded for ever" in forced


def test_what_is_done_already_has_one_stage() -> None:
    """The present one."""
    assert len(stages(cluster_of(3), MemberRequest("add", 3))) == 1
