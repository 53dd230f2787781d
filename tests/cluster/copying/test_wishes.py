"""A disk's wish as the body of ASK."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cluster.copying.wishes import CopyWish

WISH = CopyWish(4, b"new disk", b"the last", "its log is damaged", "127.0.0.1:7104", "http://n4")


@pytest.mark.parametrize("former", [b"", b"the last"])
def test_a_wish_is_read_as_it_was_written(former: bytes) -> None:
    """With and without a former life."""
    wish = CopyWish(4, b"new disk", former, "it is empty", "h:1", "http://h")
    assert CopyWish.from_json(wish.to_json()) == wish


@pytest.mark.parametrize(
    "changed", [{"incarnation": ""}, {"incarnation": "ab"}, {"former": "abcd"}, {"node": "four"}, {"former": "no hex"}]
)
def test_a_malformed_wish_is_refused(changed: dict[str, Any]) -> None:
    """A life has eight bytes, a former one eight or none."""
    with pytest.raises((ValueError, TypeError)):
        CopyWish.from_json({**WISH.to_json(), **changed})
