"""`GET /v1/events`: what the status page draws, as server-sent events, one a second.

One rule: a viewer costs little and holds nothing back. There are `VIEWERS_MAX` of them, and no credential has
all (`shares.py` of the node). Each must read within `body_timeout_s`, its credential is looked at again before every event, and a
stopping server ends them all.

Each event is one `data:` line: `{"telemetry": …, "status": …}`, see `Node.telemetry` and `Node.status`. `?after=N` leaves out the
rows of the history up to number N, which the viewer has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from cmdlog.api.gate.problem import Problem, invalid
from cmdlog.api.gate.token_file import Credential
from cmdlog.api.routes.app_state import Service

if TYPE_CHECKING:
    from cmdlog.node.node import Node

EVERY_S: Final = 1.0  # as often as the history gets a row
ROW_DIGITS_MAX: Final = 12
HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # a proxy must pass each event on at once
]


def dashboard_page() -> str:
    """The status page."""
    return files("cmdlog.api").joinpath("dashboard.html").read_text(encoding="utf-8")


async def send_events(
    service: Service, scope: Scope, receive: Receive, send: Send, *, caller: Credential, still_allowed: Callable[[], None]
) -> None:
    """Serves one viewer until it leaves, its credential ends, or the server stops.

    `still_allowed` raises Problem when the caller's credential no longer serves.

    Raises: Problem before the first event; ConnectionError.
    """
    after = _row_number(scope)
    node = service.node()
    with service.viewing(caller.name):
        left = asyncio.create_task(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            while not left.done() and not service.stopping and _allowed(still_allowed):
                event, after = await asyncio.get_running_loop().run_in_executor(
                    service.slow, partial(_event, service, node, caller, after)
                )
                async with asyncio.timeout(service.settings.body_timeout_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await asyncio.wait((left,), timeout=EVERY_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()


def _event(service: Service, node: Node, caller: Credential, after: int) -> tuple[bytes, int]:
    """One event, and the number of its newest row."""
    telemetry: dict[str, Any] = node.telemetry(after)
    data = service.shown_to(caller, {"telemetry": telemetry, "status": node.status()})  # without newlines, which would end it
    return b"data: %b\n\n" % data, telemetry["history"]["next"]


def _allowed(still_allowed: Callable[[], None]) -> bool:
    try:
        still_allowed()
    except Problem:
        return False
    return True


async def _left(receive: Receive) -> None:
    """Ends when the viewer is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _row_number(scope: Scope) -> int:
    """The `after` of the address. Raises: Problem."""
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get("after", ["0"])
    if len(given) == 1 and given[0].isascii() and given[0].isdigit() and len(given[0]) <= ROW_DIGITS_MAX:
        return int(given[0])
    raise invalid([("after", "must be the `next` of an earlier event: a decimal number")])
