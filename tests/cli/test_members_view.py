"""Members in words: the newest view counts, and each state has its text."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cli.cluster.members_view import copy_text, member_text, newest_view, unsettled_nodes
from tests.api.fake_desk import COPY, a_member


def row(node: int, *members: dict[str, Any], version: int = 1, **more: Any) -> dict[str, Any]:
    """What one node says."""
    return {"node": node, "groups": {}, "version": version, "members": list(members), **more}


def test_newest_version_is_believed() -> None:
    """Not the first that answers, and not one that does not; among equals the leader."""
    old, new = row(1, version=3), row(2, version=4)
    assert newest_view([old, new, {"node": 3, "state": "unreachable"}]) is new
    assert newest_view([row(1), leader := row(2, standing="leading")]) is leader
    assert newest_view([{"node": 3}]) == {}


@pytest.mark.parametrize(
    ("member", "more", "text"),
    [
        (a_member(4), {}, "voter"),
        (a_member(4, "member", seat="learner"), {"failure_set": {"nodes": [4]}}, "failed, learner"),
        (a_member(4, "expected"), {}, "expected"),
        (a_member(4, "leaving_old"), {}, "leaving, to be replaced"),
        (a_member(4, "admitted"), {}, "catching up"),
        (a_member(4, "admitted"), {"copying": {"copies": [COPY]}}, "copying 40 %"),
        (a_member(4, forced=True), {}, "voter (forced)"),
        (a_member(5), {}, ""),
    ],
)
def test_member_has_a_text(member: dict[str, Any], more: dict[str, Any], text: str) -> None:
    """In a column of a table."""
    assert member_text([row(1, member, **more)], 4) == text


def test_nodes_on_their_way_are_known() -> None:
    """They need not answer."""
    assert unsettled_nodes([row(1, a_member(1), a_member(2, "removed"), a_member(3, "admitted"))]) == {2, 3}
    assert unsettled_nodes([{"node": 1}]) == frozenset()


def test_copy_without_numbers_is_still_one() -> None:
    """Before the first byte nothing is known of its pace."""
    assert copy_text({"node": 4, "percent": None, "rate": 0.0, "left_s": None}) == "copying"
    assert copy_text({**COPY, "rate": 3 << 20}) == "copying 40 %, 3.0 MiB/s, 6 s left"
