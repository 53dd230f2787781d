"""FastAPI derives the routes of the table from signatures: 60 ms for each application, of which tests make a thousand.

Here the routes are made once for a process; those of an application are copies with handlers of its own.
"""

from __future__ import annotations

import copy
from functools import cache

from fastapi.routing import request_response

from cmdlog.api.gate.route_table import TABLE, Entry
from cmdlog.api.routes import fastapi_routes
from cmdlog.api.routes.fastapi_routes import GatedRoute, Handler, serve_below

_make = fastapi_routes._table_route


@cache
def _described(name: str, required: bool) -> GatedRoute:
    (entry,) = (entry for entry in TABLE if entry.name == name)
    return _make(entry, serve_below, required=required)


def _copied(entry: Entry, handler: Handler, *, required: bool) -> GatedRoute:
    route = copy.copy(_described(entry.name, required))
    route.handler = handler
    route.app = request_response(route.get_route_handler())
    return route


def install() -> None:
    """From now on applications of this process have copies."""
    fastapi_routes._table_route = _copied
