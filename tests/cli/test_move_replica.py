"""`cmdlog cluster move-replica`: one node is added and level before the other one is retired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster import change_progress
from cmdlog.cluster.membership.operator_desk import RefusedBecause
from tests.api.fake_desk import refused
from tests.cli.member_server import MemberServer, exit_code, member_server, run

MOVE = ("cluster", "move-replica", "2", "--to", "4", "--peer", "h:1", "--client", "http://h")


@pytest.fixture
def server() -> Iterator[MemberServer]:
    """Node 1, which leads; node 4 is expected."""
    with member_server() as made:
        made.fake.copies.under_way.clear()
        made.set_member(4, "expected")
        yield made


def test_old_node_is_retired_once_the_new_one_votes(
    server: MemberServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a moment before: there is never a voter fewer."""

    def asked() -> list[str]:
        return [kind for kind, _, _ in server.fake.membership.asked]

    def become_level() -> None:
        assert asked() == ["add"]
        server.set_member(4, "member")

    def leave() -> None:
        assert asked() == ["add", "retire"]
        server.set_member(2, "removed")

    steps: Iterator[Callable[[], None]] = iter([become_level, leave])
    monkeypatch.setattr(change_progress, "time", SimpleNamespace(sleep=lambda _: next(steps)()))
    run(*MOVE, "--url", server.url, "--json")
    told = orjson.loads(capsys.readouterr().out)
    assert (told["add"]["progress"]["done"], told["retire"]["progress"]["state"]) == (True, "removed")
    assert server.fake.membership.asked == [("add", 4, {"peer": "h:1", "client": "http://h"}), ("retire", 2, {})]


def test_interrupted_move_retires_nobody(server: MemberServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new node still comes; the command continues when it is given again."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(change_progress, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(CommandFailed, match="the add of node 4 continues in the cluster"):
        run(*MOVE, "--url", server.url)
    assert [kind for kind, _, _ in server.fake.membership.asked] == ["add"]


def test_plan_shows_both_changes(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """And ends with 1 if one of them would be refused."""
    assert exit_code(*MOVE, "--url", server.url, "--plan") == 0
    printed = capsys.readouterr().out
    assert ("after add" in printed, "after retire" in printed) == (True, True)
    assert [options["plan"] for _, _, options in server.fake.membership.asked] == [True, True]
    server.fake.membership.refusal = refused(RefusedBecause.QUORUM_AT_RISK)
    assert exit_code(*MOVE, "--url", server.url, "--plan") == 1
