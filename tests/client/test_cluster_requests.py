"""What a client asks of a cluster's members: both clients, over the real routes."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cluster.membership.operator_desk import RefusedBecause
from cmdlog.errors import InvalidParameters, RequestRefused
from tests.api.fake_desk import refused
from tests.cli.member_server import MemberServer, member_server
from tests.client.drives import Drive


def ask(drive: Drive, server: MemberServer, name: str, *arguments: Any, **options: Any) -> Any:
    """One method of a client."""
    return drive.run(server.url, lambda client: getattr(client, name)(*arguments, **options), token=server.token)


def test_members_are_seen_and_changed(drive: Drive) -> None:
    """Options are sent as they are; what is refused has the class and the code that callers know."""
    with member_server() as server:
        assert [member["node"] for member in ask(drive, server, "members")["members"]] == [1, 2]
        assert ask(drive, server, "change_member", "retire", 2, plan=True)["plan"]["stages"][1]["quorum"] == 3
        assert ask(drive, server, "recover_unsafely", yes_lose=True)["lost"] == [2, 3]
        assert ask(drive, server, "cancel_copy", 4)["cancelled"] == 1
        assert server.fake.membership.asked == [("retire", 2, {"plan": True})]
        server.fake.membership.refusal = refused(RefusedBecause.LAST_COPY)
        with pytest.raises(RequestRefused) as failed:
            ask(drive, server, "change_member", "remove", 2)
        assert failed.value.code == "last_copy"
        with pytest.raises(InvalidParameters):
            ask(drive, server, "change_member", "remove", 2, base=-1)


def test_change_in_doubt_is_asked_again(drive: Drive) -> None:
    """A lost leadership leaves it open whether the change was begun: asking twice does it once, so the client does."""
    with member_server() as server:
        membership = server.fake.membership
        membership.refusal = refused(RefusedBecause.UNKNOWN_OUTCOME)
        first = membership.request

        def request(kind: Any, node: int, **options: Any) -> dict[str, Any]:
            try:
                return first(kind, node, **options)
            finally:
                membership.refusal = None

        membership.request = request  # type: ignore[method-assign]
        assert ask(drive, server, "change_member", "add", 4)["node"] == 4
        assert membership.asked == [("add", 4, {})] * 2
