"""Routes of operators: members, changes of them, copies under way, recovery without a majority.

One rule: nothing is decided here. A body is read strictly, the leader is named where another node has to be asked, and what the
node refuses leaves under the code that the refusal names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import Request, Response

from cmdlog.api.gate.problem import CODES, Problem, invalid, of_refused
from cmdlog.api.gate.request import json_object, only_fields, read_body
from cmdlog.api.gate.route_table import CHANGES
from cmdlog.api.routes.app_state import Service, json_answer
from cmdlog.cluster.membership.operator_desk import OperatorDesk
from cmdlog.node.outcome import NotReady
from cmdlog.operator_error import OperatorError

T = TypeVar("T")
NODE_MAX: Final = (1 << 31) - 1
VERSION_MAX: Final = (1 << 63) - 1
CHANGE_FIELDS: Final = frozenset(("peer", "client", "base", "force", "plan"))
RECOVERY_FIELDS: Final = frozenset(("yes_lose", "survivors", "force"))
SURVIVOR_FIELDS: Final = frozenset(("node", "ends"))
RETRY_S: Final = 0.5
CODE_OF: Final = {"bad_request": "invalid_parameters", "not_leading": "not_ready", "unknown_outcome": "outcome_unknown"}
"""Codes of refusals that have a name of their own on the wire: what they mean for a caller is what it means for calls."""


def cluster_handlers(service: Service) -> dict[str, Callable[[Request], Any]]:
    """By the names of the route table."""

    async def members(_: Request) -> Response:
        return json_answer(await service.run_slowly(_desk(service).describe))

    async def copies(_: Request) -> Response:
        return json_answer(await service.run_slowly(_desk(service).copies.status))

    async def cancel_copy(request: Request) -> Response:
        node = _node_of(request)
        cancelled = await _ask_desk(service, lambda desk: desk.copies.cancel(node))
        if not cancelled:
            raise Problem("no_copy", f"this node copies nothing to node {node}: ask the node that does")
        return json_answer({"node": node, "cancelled": cancelled})

    async def unsafe_recover(request: Request) -> Response:
        body = await read_body(request.scope, request.receive, limit_bytes=service.settings.call_bytes_max)
        asked = read_recovery(await service.read_aside(body, json_object))
        return json_answer(await _ask_desk(service, lambda desk: desk.recovery.become_sole_voter(**asked)))

    async def change(request: Request, kind: Any) -> Response:
        node = _node_of(request)
        body = await read_body(request.scope, request.receive, limit_bytes=service.settings.call_bytes_max)
        options = read_change(await service.read_aside(body, json_object) if body.strip() else {})
        _desk(service)
        check_leading(service)
        return json_answer(await _ask_desk(service, lambda desk: desk.change(kind, node, **options)))

    changes = {kind: partial(change, kind=kind) for kind in sorted(CHANGES)}
    return {"members": members, "copies": copies, "cancel_copy": cancel_copy, "unsafe_recover": unsafe_recover, **changes}


def read_change(given: Mapping[str, Any]) -> dict[str, Any]:
    """How a change is asked for. Raises: Problem, which names every field at fault."""
    only_fields(given, CHANGE_FIELDS)
    problems = [(name, "must be a string") for name in ("peer", "client") if not isinstance(given.get(name), str | None)]
    problems += _bad_flags(given, "force", "plan")
    base = given.get("base")
    if base is not None and (type(base) is not int or not 0 <= base <= VERSION_MAX):
        problems.append(("base", "must be a version, as GET /v1/cluster/members answers it"))
    if problems:
        raise invalid(problems)
    return dict(given)


def read_recovery(given: Mapping[str, Any]) -> dict[str, Any]:
    """How a recovery without a majority is asked for. Raises: Problem."""
    only_fields(given, RECOVERY_FIELDS)
    problems = _bad_flags(given, "yes_lose", "force")
    survivors = given.get("survivors", [])
    if not isinstance(survivors, list) or not all(_is_survivor(one) for one in survivors):
        problems.append(
            ("survivors", "must list other nodes as {node, ends: {group: [term, index]}}, as they say in their status")
        )
    if problems:
        raise invalid(problems)
    return {"yes_lose": given.get("yes_lose", False), "survivors": survivors, "force": given.get("force", False)}


def _is_survivor(value: Any) -> bool:
    if type(value) is not dict or value.keys() != SURVIVOR_FIELDS or not _is_number(value["node"]):
        return False
    if not 0 < value["node"] <= NODE_MAX:
        return False
    ends = value["ends"]
    return type(ends) is dict and all(
        group.isascii() and group.isdecimal() and type(end) is list and len(end) == 2 and all(map(_is_number, end))
        for group, end in ends.items()
    )


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= VERSION_MAX


def check_leading(service: Service) -> None:
    """A node that does not lead answers as it answers calls: it names the leader. Raises: Problem."""
    refusal = service.node().sequencer.admission.refusal
    if isinstance(refusal, NotReady):
        raise of_refused(refusal)


def _bad_flags(given: Mapping[str, Any], *names: str) -> list[tuple[str, str]]:
    return [(name, "must be true or false") for name in names if type(given.get(name, False)) is not bool]


def _node_of(request: Request) -> int:
    """Raises: Problem."""
    text = str(request.path_params["node"])
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(NODE_MAX)) or not 0 < int(text) <= NODE_MAX:
        raise invalid([("node", "must be the number of a node")])
    return int(text)


def _desk(service: Service) -> OperatorDesk:
    """Raises: Problem, of a node alone, and while there is no node."""
    desk = service.node().overview.operator_desk
    if desk is None:
        raise Problem("not_clustered", "this node is alone: `cmdlog cluster init` makes a cluster")
    return desk


async def _ask_desk(service: Service, ask: Callable[[OperatorDesk], T]) -> T:
    """Raises: Problem."""
    desk = _desk(service)
    try:
        return await service.run_slowly(lambda: ask(desk))
    except OperatorError as refused:
        if CODE_OF.get(refused.kind, refused.kind) not in CODES:
            raise
        raise of_operator_error(refused) from None


def of_operator_error(refused: OperatorError) -> Problem:
    """What the node refused, under the code that the refusal names."""
    code, leader = CODE_OF.get(refused.kind, refused.kind), getattr(refused, "leader", "")
    more = {"leader": leader} if leader else {}
    return Problem(code, refused.headline, retry_after_s=RETRY_S if CODES[code][0] == 503 else None, hint=refused.hint, **more)
