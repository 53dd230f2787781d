"""`GET /v1/events`: what the status page draws, as server-sent events, one a second.

One rule: a viewer costs little and holds nothing back. There are `VIEWERS_MAX` of them, and no credential has
all (`shares.py` of the node). Each must read within `body_timeout_s`, its credential is looked at again before every event, and a
stopping server ends them all.

Each event is one `data:` line: `{"telemetry": …, "status": …}`, see `Node.telemetry` and `Node.status`. `?after=N` leaves out the
rows of the history up to number N, which the viewer has.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cmdlog.api.gate.problem import Problem, invalid
from cmdlog.api.gate.request import AUTHORIZATION, Incoming
from cmdlog.api.gate.route_table import READ, Entry, roles
from cmdlog.api.routes.service import Service
from cmdlog.api.routes.strict_route import IncomingOf, ServiceOf, route

EVERY_S: Final = 1.0  # as often as the history gets a row
ROW_DIGITS_MAX: Final = 12
HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # a proxy must pass each event on at once
]


class EventsResponse(PlainTextResponse):
    """Serves one viewer until it leaves, its credential ends, or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, incoming: Incoming) -> None:
        """Raises: Problem."""
        super().__init__()
        self._service, self._incoming = service, incoming
        self._after = _row_number(incoming.query)
        self._node = service.node()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: Problem before the first event; ConnectionError."""
        service, caller = self._service, self._incoming.caller
        with service.viewing(caller.name):
            left = asyncio.create_task(_left(receive))
            try:
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                while not left.done() and not service.stopping and self._is_allowed():
                    event = await asyncio.get_running_loop().run_in_executor(service.slow, self._next_event)
                    async with asyncio.timeout(service.settings.body_timeout_s):
                        await send({"type": "http.response.body", "body": event, "more_body": True})
                    await asyncio.wait((left,), timeout=EVERY_S)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                left.cancel()

    def _is_allowed(self) -> bool:
        """Whether the credential still serves."""
        try:
            caller = self._service.gatekeeper.authenticate(self._incoming.headers.get(AUTHORIZATION))
        except Problem:
            return False
        return not caller.roles.isdisjoint(ENTRY.roles)

    def _next_event(self) -> bytes:
        telemetry: dict[str, Any] = self._node.telemetry(self._after)
        self._after = telemetry["history"]["next"]
        shown = {"telemetry": telemetry, "status": self._node.status()}
        return b"data: %b\n\n" % self._service.shown_to(self._incoming.caller, shown)  # without newlines, which would end it


ENTRY: Final = Entry(
    "events", "GET", "/v1/events", roles(READ), "What the status page shows, as server-sent events", kind="stream"
)


@route(ENTRY, "One event per second, until the viewer disconnects", takes=("After",), response=EventsResponse)
async def send_events(service: ServiceOf, incoming: IncomingOf) -> Response:
    return EventsResponse(service, incoming)


async def _left(receive: Receive) -> None:
    """Ends when the viewer is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _row_number(query: bytes) -> int:
    """The `after` of the address. Raises: Problem."""
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("after", ["0"])
    if len(given) == 1 and given[0].isascii() and given[0].isdigit() and len(given[0]) <= ROW_DIGITS_MAX:
        return int(given[0])
    raise invalid([("after", "must be the `next` of an earlier event: a decimal number")])
