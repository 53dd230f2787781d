"""Routes of operators: members, changes of them, copies under way, recovery without a majority, other code.

One rule: nothing is decided here. The leader is named where another node has to be asked, and what the node refuses leaves under
the code that the refusal names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from fastapi import Body, Path, Response
from pydantic import BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from cmdlog.api.gate.problem import CODES, Problem, invalid, of_refused
from cmdlog.api.gate.route_table import CHANGES
from cmdlog.api.routes.response_models import AnyObject, ClosedObject, Count, OpenObject, absent
from cmdlog.api.routes.service import Service
from cmdlog.api.routes.strict_route import ServiceOf, json_answer, route
from cmdlog.cluster.membership.operator_desk import OperatorDesk
from cmdlog.node.outcome import NotReady
from cmdlog.operator_error import OperatorError
from procedures.code.bundle import BUNDLE_BYTES_MAX, Bundle
from procedures.errors import BundleError, BundleForged

T = TypeVar("T")

RETRY_S: Final = 0.5
NODE_MAX: Final = 1 << 31
NODE_DIGITS_MAX: Final = len(str(NODE_MAX))
CODE_OF: Final = {"bad_request": "invalid_parameters", "not_leading": "not_ready", "unknown_outcome": "outcome_unknown"}
"""Codes of refusals that have a name of their own on the wire: what they mean for a caller is what it means for calls."""
ONLY_PLAN: Final = {"only a plan": {"value": {"plan": True}}}
CONFIRMED: Final = {"confirmed": {"value": {"yes_lose": True}}}


def _read_number(text: str) -> int:
    """A number of a path: digits alone."""
    if not text.isascii() or not text.isdecimal() or len(text) > NODE_DIGITS_MAX or not 0 < int(text) < NODE_MAX:
        raise ValueError("must be the number of a node")
    return int(text)


NodeNumber = Annotated[int, Field(ge=1, lt=NODE_MAX, description="number of a node")]
NodeInPath = Annotated[NodeNumber, BeforeValidator(_read_number), Path()]
EntryNumber = Annotated[int, Field(ge=0, lt=1 << 63, description="a term or an index")]
MemberState = Literal["member", "expected", "leaving_old", "joining", "admitted", "leaving", "removed"]


class ChangeRequest(ClosedObject):
    """The body of a change of the members, which may be empty."""

    peer: str | None = absent("host:port for the other nodes; of a node that is added")
    client: str | None = absent("URL for clients; of a node that is added")
    base: Annotated[int, Field(ge=0, lt=1 << 63)] | None = absent(
        "the version that the caller has seen; refused if it has changed"
    )
    force: bool = absent("also where acknowledged calls may be lost; this is recorded permanently")
    plan: bool = absent("reports what the change would do, and changes nothing")


class SurvivingNode(ClosedObject):
    """Another node that is left, and where its logs end."""

    node: NodeNumber
    ends: dict[Annotated[str, Field(pattern="^[0-9]{1,5}$")], Annotated[list[EntryNumber], Field(min_length=2, max_length=2)]] = (
        Field(
            description="group -> term and index of its last entry, as `end` of `cluster.groups` in its status",
            json_schema_extra={"additionalProperties": False},
        )
    )


class RecoveryRequest(ClosedObject):
    """The body of a recovery without a majority."""

    yes_lose: bool = absent("confirms that acknowledged calls may be lost; refused without it")
    survivors: list[SurvivingNode] = absent("other nodes that are left; refused if one of them has more data")
    force: bool = absent("also if another survivor has more, or a majority is connected")


class QuorumStage(OpenObject):
    """The voters in one stage of a change."""

    what: str
    voters: list[int]
    learners: list[int]
    quorum: int
    live: list[int]
    survives: int = Field(description="how many live voters may be lost before commits stop")


class ChangePlan(OpenObject):
    """What a change means."""

    stages: list[QuorumStage]
    warnings: list[str]


class ChangeAnswer(OpenObject):
    """What was begun, is under way or done already, or would be."""

    kind: str
    node: int
    state: str = Field(description="of the node; empty: not in the cluster")
    version: Count
    already: bool = Field(description="it was done before, or is running")
    plan: ChangePlan


class RecoveryAnswer(OpenObject):
    """What was done, or done already."""

    node: int
    already: bool


class CopyStatus(OpenObject):
    """One copy of this node's data to another."""

    node: int
    percent: float
    rate: int = Field(description="bytes per second")
    left_s: float | None


class CopyList(OpenObject):
    """The copies under way, and what they may cost."""

    copies: list[CopyStatus]


class CopyCancelled(ClosedObject):
    """How many copies to the node were ended."""

    node: int
    cancelled: int


class MemberStatus(OpenObject):
    """One member, as the log states it."""

    node: int
    state: MemberState
    peer: str
    client: str
    incarnation: str = Field(description="of its disk, in hexadecimal; empty: not known")
    former: list[str] = Field(description="earlier lives of its disk")
    forced: bool = Field(description="an operator has overruled a check")


class FailureSetStatus(OpenObject):
    """Which nodes are declared failed, and which were."""

    sequence: Count | None
    nodes: list[int]
    history: list[AnyObject] = Field(description="every known set, oldest first")


class MemberList(OpenObject):
    """The members and what happens to them."""

    version: Count = Field(description="for `base` of a change")
    leader: int | None
    operation: AnyObject | None = Field(description="the change that is under way")
    waits: str = Field(description="why the leader is not carrying it out at present; empty: it is")
    members: list[MemberStatus]
    failure_set: FailureSetStatus
    copies: list[CopyStatus]


# -- what they do ----------------------------------------------------------------------------------------------------------


@route("members", "The members, and what happens to them", MemberList)
async def list_members(service: ServiceOf) -> Response:
    return json_answer(await service.run_slowly(_desk(service).describe))


@route("copies", "The copies under way", CopyList)
async def list_copies(service: ServiceOf) -> Response:
    return json_answer(await service.run_slowly(_desk(service).copies.status))


@route("cancel_copy", "How many were ended", CopyCancelled)
async def cancel_copy(service: ServiceOf, node: NodeInPath) -> Response:
    """One node."""
    cancelled = await _ask_desk(service, lambda desk: desk.copies.cancel(node))
    if not cancelled:
        raise Problem("no_copy", f"no copy to node {node} is running on this node; ask its source")
    return json_answer({"node": node, "cancelled": cancelled})


@route("unsafe_recover", "What was done", RecoveryAnswer)
async def recover_unsafely(service: ServiceOf, body: Annotated[RecoveryRequest, Body(openapi_examples=CONFIRMED)]) -> Response:
    """Asked of the very node that has the newest data: nothing is forwarded."""
    asked: dict[str, Any] = {"yes_lose": False, "survivors": [], "force": False} | body.model_dump(exclude_unset=True)
    return json_answer(await _ask_desk(service, lambda desk: desk.recovery.become_sole_voter(**asked)))


def _change_by(kind: Any) -> Callable[..., Any]:
    async def change(
        service: ServiceOf,
        node: NodeInPath,
        body: Annotated[ChangeRequest | SkipJsonSchema[None], Body(openapi_examples=ONLY_PLAN)] = None,
    ) -> Response:
        """Done once: a repetition gets `already`."""
        options = {} if body is None else body.model_dump(exclude_unset=True)
        _desk(service)
        check_leading(service)
        return json_answer(await _ask_desk(service, lambda desk: desk.change(kind, node, **options)))

    return change


for _kind in CHANGES:
    route(_kind, "What was begun, or is done already", ChangeAnswer, takes=("PreferRedirect",))(_change_by(_kind))


def check_leading(service: Service) -> None:
    """A node that does not lead answers as it answers calls: it names the leader. Raises: Problem."""
    refusal = service.node().sequencer.admission.refusal
    if isinstance(refusal, NotReady):
        raise of_refused(refusal)


def _desk(service: Service) -> OperatorDesk:
    """Raises: Problem, of a node alone, and while there is no node."""
    desk = service.node().overview.operator_desk
    if desk is None:
        raise Problem("not_clustered", "this node is alone: `cmdlog cluster init` makes a cluster")
    return desk


async def _ask_desk(service: Service, ask: Callable[[OperatorDesk], T]) -> T:
    """Raises: Problem."""
    desk = _desk(service)
    return await run_for_operator(service, lambda: ask(desk))


async def run_for_operator(service: Service, work: Callable[[], T]) -> T:
    """Runs blocking work aside, whose refusals leave under the code that they name. Raises: Problem."""
    try:
        return await service.run_slowly(work)
    except OperatorError as refused:
        code, leader = CODE_OF.get(refused.kind, refused.kind), getattr(refused, "leader", "")
        if code not in CODES:
            raise
        more = {"leader": leader} if leader else {}
        retry_after_s = RETRY_S if CODES[code][0] == 503 else None
        raise Problem(code, refused.headline, retry_after_s=retry_after_s, hint=refused.hint, **more) from None


BODY_BYTES_MAX: Final = 2 * BUNDLE_BYTES_MAX  # the bundle, and what quoting its sources adds
VERSION_MAX: Final = (1 << 31) - 1
BACK: Final = {"back": {"value": {"rollback": True, "plan": True}}}


class DeployRequest(ClosedObject):
    """The body of a deploy: code, or a former version."""

    bundle: AnyObject = absent("modules, statements and procedures, as `cmdlog deploy` makes it of an application")
    rollback: bool = absent("the code of an earlier version, instead of a bundle")
    to: Annotated[int, Field(ge=1, le=VERSION_MAX)] = absent(
        "with `rollback`: the version; without it, the one before the newest"
    )
    migrate: bool = absent("also if calls have to pause: for migrations, and for changes that existing rows may prevent")
    plan: bool = absent("checks everything, reports what would change, and changes nothing")


class DeployResult(ClosedObject):
    """What was deployed, or would be."""

    version: int = Field(description="of the code that calls run from now on")
    changed: bool = Field(description="false: that code runs already")
    partitions: dict[str, list[str]] = Field(description="partition -> SQL that changes its tables; those unchanged are left out")
    migrations: list[str] = Field(description="that run")
    pauses: str = Field(description="of a plan: why calls have to pause; empty if they do not")
    former_cannot_run: str = Field(description="of a plan: why the present code could not use the new tables; empty if it could")
    steps: dict[str, list[tuple[str, str, int, float]]] = Field(
        description="of a plan with migrations: partition -> migration, SQL, rows and seconds of each step on a copy"
    )
    pause_ms: float = Field(description="how long no call could be placed; of a plan: how long the slowest copy took")


@route("deploy", "What runs now, or would", DeployResult, takes=("PreferRedirect",), body_bytes_max=BODY_BYTES_MAX)
async def deploy_code(service: ServiceOf, body: Annotated[DeployRequest, Body(openapi_examples=BACK)]) -> Response:
    """Blocks until calls run the code; every call before and after is answered."""
    check_order(body)
    deployer, migrate, plan = service.node().deployer, bool(body.migrate), bool(body.plan)

    def run() -> dict[str, Any]:
        if body.rollback:
            return deployer.roll_back(body.to, migrate=migrate, plan=plan)
        return deployer.deploy(bundle_in(body.bundle), migrate=migrate, plan=plan)

    return json_answer(await run_for_operator(service, run))


def check_order(body: DeployRequest) -> None:
    """Either a bundle or a former version. Raises: Problem."""
    bundled, problems = "bundle" in body.model_fields_set, []
    if bundled == bool(body.rollback):
        problems.append(("bundle", "give either a bundle or `rollback`"))
    if bundled and body.to is not None:
        problems.append(("to", "is for `rollback`"))
    if problems:
        raise invalid(problems)


def bundle_in(value: AnyObject) -> Bundle:
    """Raises: Problem."""
    try:
        return Bundle.from_bytes(orjson.dumps(value))
    except (BundleForged, BundleError) as error:
        raise Problem("bundle_refused", str(error)) from None
