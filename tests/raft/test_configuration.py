"""The configuration as a value: what is none is refused, and bytes give back what went in."""

from __future__ import annotations

import pytest

from cmdlog.raft import BadConfiguration, Configuration
from cmdlog.raft.configuration import MEMBERS_MAX, nodes


def test_bytes_give_back_the_configuration() -> None:
    """Canonical: equal values are equal bytes; fields of a newer version are skipped."""
    whole = Configuration(nodes((1, 2, 6)), nodes((1, 2, 3)), nodes((4,)), nodes((3,)), auto_leave=True, forced=True, epoch=5)
    for each in (whole, Configuration(), Configuration(voters=nodes((1,)))):
        assert Configuration.from_bytes(each.to_bytes()) == each
    assert Configuration.from_bytes(b'{"voters": [1], "newer": {}}') == Configuration(voters=nodes((1,)))
    assert whole.to_bytes().startswith(b'{"auto_leave":true,"epoch":5,"forced":true,"learners":[4],')
    assert b"epoch" not in Configuration(voters=nodes((1,)), forced=True).to_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b'{"voters": 1}', b'{"voters": ["1"]}', b'{"voters": [true]}', b'{"voters": [1.5]}']
)
def test_bytes_that_are_no_configuration_are_refused(data: bytes) -> None:
    """Whatever a peer or a disk says, the error is one."""
    with pytest.raises(BadConfiguration):
        Configuration.from_bytes(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"voters": (2, 1)},
        {"voters": (1, 1)},
        {"voters": (0, 1)},
        {"voters": (1 << 63,)},
        {"voters": tuple(range(1, MEMBERS_MAX + 2))},
        {"voters": (1,), "learners": (1,)},
        {"voters": (1,), "epoch": 7},
        {"voters": (1,), "forced": True, "epoch": -1},
        {"voters": (1,), "outgoing": (2,), "learners": (2,)},
        {"voters": (1,), "outgoing": (1, 2), "learners_next": (1,)},
        {"voters": (1,), "learners_next": (2,)},
        {"voters": (1,), "auto_leave": True},
        {"outgoing": (1,)},
        {"learners": (1,)},
    ],
)
def test_members_that_are_no_configuration_are_refused(fields: dict[str, tuple[int, ...]]) -> None:
    """The invariants are checked on construction, so that no configuration is ever wrong inside."""
    with pytest.raises(BadConfiguration):
        Configuration(**fields)  # type: ignore[arg-type]


def test_members_and_voters_of_both_halves_count() -> None:
    """Everybody who gets the log, and everybody who votes."""
    joint = Configuration(nodes((1, 2)), nodes((2, 3)), nodes((4,)), nodes((3,)))
    assert joint.members() == (1, 2, 3, 4)
    assert [joint.is_voter(each) for each in joint.members()] == [True, True, True, False]
    assert (joint.joint, Configuration(voters=nodes((1,))).joint) == (True, False)
