"""`POST /v1/deploy`: other code into the running node.

One rule: nothing is decided here. What the node refuses leaves under the code that the refusal names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import orjson
from fastapi import Body, Response
from pydantic import Field

from cmdlog.api.gate.problem import Problem, invalid
from cmdlog.api.gate.route_table import DEPLOY, Entry, roles
from cmdlog.api.routes.cluster_routes import run_for_operator
from cmdlog.api.routes.response_models import AnyObject, ClosedObject, absent
from cmdlog.api.routes.service import json_answer
from cmdlog.api.routes.strict_route import ServiceOf, route
from procedures.code.bundle import BUNDLE_BYTES_MAX, Bundle
from procedures.errors import BundleError, BundleForged

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


@route(
    Entry("deploy", "POST", DEPLOY, roles(), "Put other code into the running server", body="json", leads=True),
    "What runs now, or would",
    DeployResult,
    takes=("PreferRedirect",),
    body_bytes_max=BODY_BYTES_MAX,
)
async def deploy_code(service: ServiceOf, body: Annotated[DeployRequest, Body(openapi_examples=BACK)]) -> Response:
    """Blocks until calls run the code; every call before and after is answered."""
    check_order(body)
    deployer, migrate, plan = service.node().deployer, bool(body.migrate), bool(body.plan)

    def run() -> dict[str, Any]:
        if body.rollback:
            return deployer.roll_back(body.to, migrate=migrate, plan=plan)
        return deployer.deploy(bundle_in(body.bundle), migrate=migrate, plan=plan)

    answer = await run_for_operator(service, run)
    await service.fronts.follow_code()
    return json_answer(answer)


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
