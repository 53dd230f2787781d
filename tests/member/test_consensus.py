"""Tests of how consensus is put together."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.member.consensus import StatedEntries, read_places, terms_of_states
from cmdlog.wal.group_state import GroupStates
from tests.member.members import member_of, members


def test_a_failure_set_is_durable_before_anything_follows_from_it() -> None:
    """Roll and code observe an entry after it, and not at all if it cannot be had."""
    told = list[str]()

    def fail(_record: bytes) -> None:
        raise OSError("no room")

    roll: Any = SimpleNamespace(observe=lambda index, record: told.append("roll"))
    code: Any = SimpleNamespace(observe=lambda record: told.append("code"), versions=SimpleNamespace(newest=3))
    faults = SimpleNamespace(observe=lambda record: told.append("faults"))
    assert StatedEntries(cast(Any, faults), roll, code).observe(7, b"") == 3
    assert told == ["faults", "roll", "code"]
    told.clear()
    with pytest.raises(OSError, match="no room"):
        StatedEntries(cast(Any, SimpleNamespace(observe=fail)), roll, code).observe(8, b"")
    assert told == []


def test_a_state_that_is_missing_has_no_place(tmp_path: Path) -> None:
    """Then no term of the log is known to be committed."""
    assert read_places(str(tmp_path), range(2)) == {}
    assert terms_of_states(GroupStates(), {}, [0])[0].last == 0


@pytest.mark.slow
def test_a_member_is_whole_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it speaks with anybody it shows its status, and knows what it lacks of the members: itself."""
    with members(tmp_path, monkeypatch, count=3) as made:
        member = member_of(made.join(1, attached=False))
        assert member.cluster.status()["state"] == "configuring"
        assert [of.node for of in member.consensus.missing_members()] == [1]
        assert not member.cluster.readiness().serves
