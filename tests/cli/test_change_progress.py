"""How far a change is: by the newest view of the members, per kind of change."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster.change_progress import await_change, judge_change
from tests.api.fake_desk import COPY, a_member


def rows(
    state: str | None, *, failed: tuple[int, ...] = (), leader: int | None = 1, copies: list[Any] | None = None
) -> list[dict[str, Any]]:
    """What node 1 says; node 4 is in this state. None: it is not in the cluster."""
    members = [a_member(1), *([] if state is None else [a_member(4, state)])]
    told = {"node": 1, "groups": {}, "members": members, "leader": leader, "version": 9, "failure_set": {"nodes": list(failed)}}
    return [{**told, "copying": {"copies": copies or []}}]


@pytest.mark.parametrize(
    ("kind", "state", "done", "failed"),
    [
        ("add", "expected", False, False), ("add", "joining", False, False), ("add", "admitted", False, False),
        ("add", "member", True, False), ("add", "leaving", False, True), ("add", "removed", False, True),
        ("add", None, False, True),
        ("replace", "leaving_old", False, False), ("replace", "member", True, False),
        ("remove", "member", False, False), ("remove", "leaving", False, False), ("remove", "removed", True, False),
        ("retire", None, True, False),
    ],
)  # fmt: skip
def test_state_says_whether_it_is_over(kind: str, state: str | None, done: bool, failed: bool) -> None:
    """Coming ends as a member, leaving as removed; what another request has overtaken will not end."""
    progress = judge_change(kind, 4, rows(state))
    assert (progress.state, progress.done, progress.failed) == (state or "", done, failed)
    assert "4" in progress.text or "copying" in progress.text


def test_declared_failure_is_not_level() -> None:
    """A member that is in the failure set does not vote yet."""
    progress = judge_change("add", 4, rows("member", failed=(4,)))
    assert (progress.done, progress.text) == (False, "node 4 is declared failed until it is level")


def test_leadership_is_transferred_when_the_node_leads() -> None:
    """Whatever its state."""
    assert judge_change("transfer", 4, rows("member", leader=4)).done
    assert judge_change("transfer", 4, rows("member", leader=None)).text == "node ? leads"


def test_copy_is_progress_wherever_it_comes_from() -> None:
    """Another node than the leader may give it."""
    other = {"node": 2, "groups": {}, "members": [], "version": 1, "copying": {"copies": [COPY]}}
    progress = judge_change("add", 4, [*rows("admitted"), other])
    assert (progress.text, progress.percent) == ("copying 40 %, 0.0 MiB/s, 6 s left", 40.0)


def test_silence_of_all_nodes_is_waited_for() -> None:
    """An election, or a network, may take its time."""
    assert (
        judge_change("add", 4, [{"node": 1, "url": "http://one", "state": "unreachable"}]).text
        == "no node answers; waiting for one"
    )


def test_overtaken_change_ends_the_wait() -> None:
    """With what it has become."""

    class Reader:
        def ask_all(self) -> list[dict[str, Any]]:
            return rows("removed")

    with pytest.raises(CommandFailed, match="add of node 4: node 4 is now removed"):
        await_change("add", 4, Reader())  # type: ignore[arg-type]
