"""One node of a cluster as the commands meet it: the real routes, over a desk that answers what a test says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from cmdlog.api.app import create_app
from cmdlog.cli.app import make_program
from cmdlog.cli.server import server_options
from cmdlog.node.settings import Settings
from cmdlog.wal.directory.local_token import find_local_token
from tests.api.conftest import FakeNode, local_token
from tests.api.fake_desk import FakeDesk, a_member, clustered
from tests.api.served import served

NOBODY = "http://127.0.0.1:1"
CLUSTER_ID = uuid.UUID(int=7)
GROUP = {
    "term": 3, "leader": 1, "role": "leader", "last": 17, "applied": 17, "lag_entries": 0, "lag_s": 0.0, "peers": [],
    "end": [3, 17], "whole": [1, 2],
}  # fmt: skip


TOKENS: dict[str, str] = {}  # of each server by its URL: none has a directory, where a command would find it


@dataclass
class MemberServer:
    """Node 1, which leads. `said` is the rest of what it says of its cluster."""

    url: str
    node: FakeNode
    fake: FakeDesk
    token: str
    said: dict[str, Any] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        cluster = {
            "node": 1, "state": "running", "standing": "leading", "leader": 1, "groups": {"0": dict(GROUP)}, "diverged": {},
            "too_far_back": [], "unfit": [], "peers": [], "copying": self.fake.copies.status(),
            **self.fake.desk.describe_members(), **self.said,
        }  # fmt: skip
        return {
            "ready": True,
            "cluster_id": str(CLUSTER_ID),
            "partitions": {"0": {"state": "ok"}},
            "log": {"fill": 0.1},
            "cluster": cluster,
        }

    def set_member(self, node: int, state: str, **changed: Any) -> None:
        """What the desk says of a node from now on; its client URL leads nowhere."""
        membership = self.fake.membership
        others = [member for member in membership.members_now if member["node"] != node]
        membership.members_now = [*others, a_member(node, state, **{"client": NOBODY, **changed})]


@contextmanager
def member_server() -> Iterator[MemberServer]:
    """Node 1 of two; node 2 does not answer."""
    node = FakeNode(Settings())
    fake = clustered(node)
    app = create_app(node, node.settings)  # type: ignore[arg-type]  # the fake has what the routes use
    with served(app) as server, mock.patch.object(server_options, "find_local_token") as finds:
        made = MemberServer(f"http://127.0.0.1:{server.port}", node, fake, local_token(app))
        TOKENS[made.url] = made.token
        finds.side_effect = lambda url: TOKENS.get(url) or find_local_token(url)
        fake.membership.members_now = [a_member(1, client=made.url)]
        made.set_member(2, "member")
        node.status = made.status  # type: ignore[method-assign]
        yield made


def run(*arguments: str) -> None:
    """A command in this process; its errors are raised."""
    make_program()(list(arguments), standalone_mode=False)


def exit_code(*arguments: str) -> int:
    """Of a command that prints its errors."""
    try:
        make_program()(list(arguments), standalone_mode=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a program ends")
