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

import orjson
from starlette.types import Receive, Scope, Send

from cmdlog.api.gate.problem import Problem, invalid
from cmdlog.api.routes.app_state import Service

if TYPE_CHECKING:
    from cmdlog.node.node import Node

EVERY_S: Final = 1.0  # as often as the history gets a row
ROW_DIGITS_MAX: Final = 12
HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy must pass each event on at once
]
PAGE_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
}
"""The page may run its own script and ask this server; a procedure's result that slipped into markup could load nothing."""


def dashboard_page() -> str:
    """The status page."""
    return files("cmdlog.api").joinpath("dashboard.html").read_text(encoding="utf-8")


async def send_events(
    service: Service, scope: Scope, receive: Receive, send: Send, *, caller: str, still_allowed: Callable[[], None]
) -> None:
    """Serves one viewer until it leaves, its credential ends, or the server stops.

    `caller` names the credential; `still_allowed` raises Problem when it no longer serves.

    Raises: Problem before the first event; ConnectionError.
    """
    after = _row_number(scope)
    node = service.node()
    with service.viewing(caller):
        left = asyncio.create_task(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            while not left.done() and not service.stopping and _allowed(still_allowed):
                event, after = await asyncio.get_running_loop().run_in_executor(service.slow, partial(_event, node, after))
                async with asyncio.timeout(service.settings.body_timeout_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await asyncio.wait((left,), timeout=EVERY_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()


def _event(node: Node, after: int) -> tuple[bytes, int]:
    """One event, and the number of its newest row."""
    telemetry: dict[str, Any] = node.telemetry(after)
    shown = {"telemetry": telemetry, "status": node.status()}
    data = orjson.dumps(shown, option=orjson.OPT_NON_STR_KEYS)  # JSON of orjson has no newline, which would end the event
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
