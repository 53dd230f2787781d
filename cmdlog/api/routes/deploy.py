"""`POST /v1/deploy`: other code into the running node.

One rule: nothing is decided here. The body is read strictly, the leader is named where another node has to be asked, and what the
node refuses leaves under the code that the refusal names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import Body, Request, Response
from pydantic import Field

from cmdlog.api.gate.problem import CODES, Problem, invalid
from cmdlog.api.gate.request import json_object, only_fields, read_body
from cmdlog.api.routes.app_state import Service, json_answer
from cmdlog.api.routes.cluster.cluster_routes import CODE_OF, of_operator_error
from cmdlog.api.routes.response_models import AnyObject, ClosedObject, absent
from cmdlog.operator_error import OperatorError
from procedures.bundle import BUNDLE_BYTES_MAX, Bundle
from procedures.errors import BundleError, BundleForged

BODY_BYTES_MAX: Final = 2 * BUNDLE_BYTES_MAX  # the bundle, and what quoting its sources adds
FLAGS: Final = ("rollback", "migrate", "plan")
FIELDS: Final = frozenset(("bundle", "to", *FLAGS))
VERSION_MAX: Final = (1 << 31) - 1


class DeployRequest(ClosedObject):
    """The body of a deploy: code, or a former version."""

    bundle: AnyObject = absent("modules, statements and procedures, as `cmdlog deploy` makes it of an application")
    rollback: bool = absent("the code of a former version, instead of a bundle")
    to: Annotated[int, Field(ge=1, le=VERSION_MAX)] = absent("with `rollback`: which version; else the one before the newest")
    migrate: bool = absent("also where calls have to pause meanwhile: migrations, and what rows may stand in the way of")
    plan: bool = absent("checks all, says what it would change, and changes nothing")


class DeployResult(ClosedObject):
    """What was deployed, or would be."""

    version: int = Field(description="of the code that calls run from now on")
    changed: bool = Field(description="false: that code runs already")
    partitions: dict[str, list[str]] = Field(description="partition -> SQL that changes its tables; those unchanged are left out")
    migrations: list[str] = Field(description="that run")
    pauses: str = Field(description="of a plan: why calls have to pause; empty where they need not")
    instead: str = Field(description="of a plan: what to do where a deploy would be refused, since calls never pause for one")
    former_cannot_run: str = Field(description="of a plan: why the former code could not serve the new tables; empty if it could")
    steps: dict[str, list[tuple[str, str, int, float]]] = Field(
        description="of a plan with migrations: partition -> migration, SQL, rows and seconds of each step on a copy"
    )
    pause_ms: float = Field(description="how long no call could be placed; of a plan: how long the slowest copy took")


def take_deploy(
    body: Annotated[DeployRequest, Body(openapi_examples={"back": {"value": {"rollback": True, "plan": True}}})],
) -> None:
    """Blocks until calls run the code; every call before and after is answered."""


@dataclass(frozen=True, slots=True)
class DeployOrder:
    """What is asked for."""

    bundle: Bundle | None  # None: a former version
    version: int | None  # of a rollback; None: the one before the newest
    migrate: bool
    plan: bool


def deploy_handlers(service: Service) -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """By the names of the route table."""

    async def deploy(request: Request) -> Response:
        body = await read_body(request.scope, request.receive, limit_bytes=BODY_BYTES_MAX)
        order = await service.read_aside(body, lambda text: read_deploy(json_object(text)))
        deployer = service.node().deployer

        def run() -> dict[str, Any]:
            if order.bundle is None:
                return deployer.roll_back(order.version, migrate=order.migrate, plan=order.plan)
            return deployer.deploy(order.bundle, migrate=order.migrate, plan=order.plan)

        try:
            answer = await service.run_slowly(run)
        except OperatorError as refused:
            if CODE_OF.get(refused.kind, refused.kind) not in CODES:
                raise
            raise of_operator_error(refused) from None
        await service.fronts.follow_code()
        return json_answer(answer)

    return {"deploy": deploy}


def read_deploy(given: Mapping[str, Any]) -> DeployOrder:
    """The order in a body. Raises: Problem, which names every field at fault."""
    only_fields(given, FIELDS)
    problems = [(name, "must be true or false") for name in FLAGS if type(given.get(name, False)) is not bool]
    version = given.get("to")
    if version is not None and (type(version) is not int or not 1 <= version <= VERSION_MAX):
        problems.append(("to", "must be a version of the code, as `cmdlog status` shows it"))
    if ("bundle" in given) == bool(given.get("rollback", False)):
        problems.append(("bundle", "give either a bundle or `rollback`"))
    if version is not None and "bundle" in given:
        problems.append(("to", "is for `rollback`"))
    if problems:
        raise invalid(problems)
    bundle = None if "bundle" not in given else _bundle_in(given["bundle"])
    return DeployOrder(bundle, version, given.get("migrate", False), given.get("plan", False))


def _bundle_in(value: Any) -> Bundle:
    """Raises: Problem."""
    if type(value) is not dict:
        raise invalid([("bundle", "must be an object, as `cmdlog deploy` makes it")])
    try:
        return Bundle.from_bytes(orjson.dumps(value))
    except (BundleForged, BundleError) as error:
        raise Problem("bundle_refused", str(error)) from None
