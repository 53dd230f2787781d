"""Codes of refusals: stable, and each with the status of its HTTP answer."""

from __future__ import annotations

import pytest

from cmdlog.cluster.membership.refusals import MembershipRefused, RefusedBecause


@pytest.mark.parametrize("code", RefusedBecause)
def test_every_code_has_a_status(code: RefusedBecause) -> None:
    """A conflict, unless the request is wrong, the node unknown, or another node decides."""
    other = {"bad_request": 422, "unknown_node": 404, "not_leading": 503, "unknown_outcome": 503}
    error = MembershipRefused(code, "why")
    assert (error.status, error.kind, str(error)) == (other.get(code.value, 409), code.value, "why")
    assert error.hint
