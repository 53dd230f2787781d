"""The interface of membership is the one that a member has."""

from __future__ import annotations

import inspect

import pytest

from cmdlog.cluster.membership.member_desk import MemberDesk
from cmdlog.member.membership.membership_parts import MembershipParts


@pytest.mark.parametrize("name", ["request", "take_wish", "members"])
def test_a_member_has_every_method_of_the_desk(name: str) -> None:
    """With the same parameters."""
    assert inspect.signature(getattr(MembershipParts, name)) == inspect.signature(getattr(MemberDesk, name))
