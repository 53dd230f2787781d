"""Which requests an HTTP process answers itself."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from starlette.types import Receive, Scope, Send

from cmdlog.api.app import create_app
from cmdlog.api.processes.process_main import NearApp
from cmdlog.node.settings import Settings


async def echo(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Stands in for the relay."""


HERE = ("POST", "/v1/procedures/bump", b"", [(b"prefer", b"durability=async")])


class KnownProcedures:
    """A link to a node."""

    routes: ClassVar[dict[str, object]] = {"bump": object()}


@pytest.mark.parametrize(
    ("request_", "near"),
    [
        (HERE, True),
        (("POST", "/v1/batch", b"", []), True),
        (("POST", "/v1/procedures/nope", b"", []), False),
        (("POST", "/v1/procedures/bump", b"consistency=stale", []), False),
        (("POST", "/v1/procedures/bump", b"", [(b"prefer", b"Redirect=leader")]), False),
        (("POST", "/v1/batch", b"", [(b"prefer", b"durability=sync, redirect=leader")]), False),
        (("GET", "/v1/procedures/bump", b"", []), False),
        (("POST", "/v1/query", b"", []), False),
        (("GET", "/v1/status", b"", []), False),
    ],
)
def test_calls_alone_are_answered_here(request_: Any, near: bool) -> None:
    """What needs the node's state, leader or replica goes there, and all of it while there is no code."""
    link: Any = KnownProcedures()
    near_app = NearApp(create_app(None, Settings()), echo)
    assert not near_app.answers(*request_)
    near_app.answer_by(link)
    assert near_app.answers(*request_) is near
    near_app.answer_by(None)
    assert not near_app.answers(*request_)
