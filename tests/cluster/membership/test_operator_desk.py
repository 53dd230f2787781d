"""The desk of operators puts its parts together, and changes none of them."""

from __future__ import annotations

import inspect

import pytest
from structlog.testing import capture_logs

from cmdlog.cluster.membership.operator_desk import MembershipDesk, MembershipRefused, RefusedBecause
from cmdlog.member.membership.membership import Membership
from tests.api.fake_desk import COPY, FAULTS, FakeDesk, refused


def test_description_has_members_failure_sets_and_copies() -> None:
    """The set in force and those before it are in one place."""
    fake = FakeDesk()
    fake.membership.failed = {"sequence": 7, "nodes": [3]}
    described = fake.desk.describe()
    assert described["failure_set"] == {"sequence": 7, "nodes": [3], "history": list(FAULTS)}
    assert (described["copies"], described["version"]) == ([COPY], 41)
    assert "failed" not in described
    assert fake.desk.describe_members() == {name: value for name, value in described.items() if name != "copies"}
    assert fake.membership.failed == {"sequence": 7, "nodes": [3]}


def test_what_operators_ask_for_is_in_the_log() -> None:
    """With its warnings, and a refusal with its code; a plan is no change."""
    fake = FakeDesk()
    fake.membership.warnings = ["the loss of one more voter stops the cluster"]
    with capture_logs() as events:
        fake.desk.change("remove", 3, plan=True)
        fake.desk.change("remove", 3, force=True)
        fake.membership.refusal = refused(RefusedBecause.LAST_COPY, "node 3 holds it")
        with pytest.raises(MembershipRefused):
            fake.desk.change("remove", 3)
    asked, not_done = events
    assert (asked["event"], asked["force"], asked["warnings"]) == ("change_asked", True, fake.membership.warnings)
    assert (not_done["event"], not_done["code"], not_done["log_level"]) == ("change_refused", "last_copy", "warning")
    assert len(fake.membership.asked) == 3


@pytest.mark.parametrize("name", ["request", "members"])
def test_a_member_has_every_method_of_the_desk(name: str) -> None:
    """With the same parameters."""
    assert inspect.signature(getattr(Membership, name)) == inspect.signature(getattr(MembershipDesk, name))


@pytest.mark.parametrize("code", RefusedBecause)
def test_every_code_has_a_status(code: RefusedBecause) -> None:
    """A conflict, unless the request is wrong, the node unknown, or another node decides."""
    other = {"bad_request": 422, "unknown_node": 404, "not_leading": 503, "unknown_outcome": 503}
    error = MembershipRefused(code, "why")
    assert (error.status, error.kind, str(error)) == (other.get(code.value, 409), code.value, "why")
    assert error.hint
