"""What a request would mean: the stages that it goes through, how many voters decide in each, and how many may be lost.

One rule: it only computes, with the nodes that are heard from now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cmdlog.cluster.membership.member_plan import change_of
from cmdlog.cluster.membership.member_requests import MemberRequest, decide_request
from cmdlog.cluster.membership.membership_view import MembershipView, Seat, spare_voters
from cmdlog.cluster.membership.operator_desk import MembershipRefused
from cmdlog.raft.confchange import apply_change, leave_joint
from cmdlog.raft.configuration import Act, Configuration
from cmdlog.raft.errors import BadChange
from cmdlog.raft.quorum import majority

_ACTS: Mapping[str, tuple[tuple[Act, str], ...]] = {
    "add": ((Act.ADD_LEARNER, "node {} copies, without a vote"), (Act.ADD_VOTER, "node {} votes")),
    "remove": ((Act.REMOVE, "without node {}"),),
    "retire": ((Act.REMOVE, "without node {}"),),
    "replace": (
        (Act.REMOVE, "without the present disk of node {}"),
        (Act.ADD_LEARNER, "the next disk of node {} copies, without a vote"),
        (Act.ADD_VOTER, "node {} votes again"),
    ),
    "transfer": (),
}


def forecast_request(view: MembershipView, request: MemberRequest) -> dict[str, Any]:
    """The plan as plain data: stages, warnings, refusal."""
    try:
        decision, refusal = decide_request(view, request), None
    except MembershipRefused as error:
        decision, refusal = None, {"code": error.code.value, "why": str(error)}
    stages = [_stage(view, "now", {group: sight.configuration for group, sight in view.groups.items()}, copying=0)]
    if decision is None or not decision.already:
        stages += _stages_of(view, request)
    return {"stages": stages, "warnings": list(_warnings(view, request, stages)), "refusal": refusal}


def _stages_of(view: MembershipView, request: MemberRequest) -> Iterator[dict[str, Any]]:
    configurations = {group: sight.configuration for group, sight in view.groups.items()}
    for act, what in _ACTS[request.kind]:
        try:
            configurations = {group: _after(configuration, act, request.node) for group, configuration in configurations.items()}
        except BadChange:
            return
        copying = request.node if act is Act.ADD_LEARNER else 0
        yield _stage(view, what.format(request.node), configurations, copying=copying, joins=act is Act.ADD_VOTER)


def _after(configuration: Configuration, act: Act, node: int) -> Configuration:
    """Once the change is over."""
    if configuration.joint:
        configuration = leave_joint(configuration)
    if act is Act.REMOVE and node not in configuration.members():
        return configuration
    after = apply_change(configuration, change_of(act, node))
    return leave_joint(after) if after.joint else after


def _stage(
    view: MembershipView, what: str, configurations: Mapping[int, Configuration], *, copying: int, joins: bool = False
) -> dict[str, Any]:
    """Of all groups the one that is worst off."""
    spare, group = min(
        (spare_voters(configuration, view.groups[group].live | _joining(view, configuration, joins=joins)), group)
        for group, configuration in configurations.items()
    )
    configuration = configurations[group]
    live = view.groups[group].live | _joining(view, configuration, joins=joins)
    return {
        "what": what,
        "voters": list(configuration.voters),
        "learners": list(configuration.learners),
        "quorum": majority(len(configuration.voters)),
        "live": sorted(live.intersection(configuration.voters)),
        "survives": spare,
        **({"copying": copying} if copying else {}),
    }


def _joining(view: MembershipView, configuration: Configuration, *, joins: bool) -> frozenset[int]:
    """A node that has come to vote is heard from by then."""
    return frozenset(node for node in configuration.voters if joins and view.seats_of(node) != {Seat.VOTER})


def _warnings(view: MembershipView, request: MemberRequest, stages: list[dict[str, Any]]) -> Iterator[str]:
    for stage in stages[1:]:
        if stage["survives"] < 0:
            yield f"{stage['what']}: the voters that are heard from are no majority, and nothing is committed"
        elif stage["survives"] == 0 and len(stage["voters"]) > 1:
            yield f"{stage['what']}: the loss of one more voter stops the cluster"
    if request.kind in ("remove", "retire", "replace"):
        whole = [sight.whole - {request.node} for sight in view.groups.values() if sight.seat_of(request.node) is Seat.VOTER]
        if any(len(nodes) <= 1 for nodes in whole):
            left = sorted(next(nodes for nodes in whole if len(nodes) <= 1))
            yield f"without node {request.node} " + (
                f"node {left[0]} holds the only whole copy" if left else "no live voter is known to hold everything"
            )
        if not view.is_live(request.node):
            yield f"node {request.node} is not heard from: start its old disk nowhere again"
    if request.force:
        yield "the use of --force is recorded for ever"
