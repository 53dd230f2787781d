"""`cmdlog cluster unsafe-recover`: the survivors are compared, and only the one that continues is asked."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster.unsafe_recover import recovery_problems, survivor_of
from cmdlog.operator_error import OperatorError
from tests.cli.member_server import GROUP, MemberServer, exit_code, member_server, run


@pytest.fixture
def server() -> Iterator[MemberServer]:
    """Node 1, which knows no leader."""
    with member_server() as made:
        made.said = {"leader": None, "standing": "following", "groups": {"0": {**GROUP, "leader": None}}}
        yield made


def test_survivor_is_asked_with_the_ends_of_the_others(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """It can refuse by them; what it gave up is printed with the way back."""
    with member_server() as other:
        other.said = {"node": 2, "leader": None, "standing": "following", "groups": {"0": {**GROUP, "end": [3, 16]}}}
        run("cluster", "unsafe-recover", "1", "--url", f"{server.url},{other.url}", "--yes")
        assert other.fake.recovery.asked == []
    assert server.fake.recovery.asked == [{"yes_lose": True, "survivors": [{"node": 2, "ends": {"0": [3, 16]}}], "force": False}]
    assert "node 1 is the only voter now; given up: node 2, 3" in capsys.readouterr().out


def test_plan_compares_and_asks_nobody(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 where another survivor holds more."""
    assert exit_code("cluster", "unsafe-recover", "1", "--url", server.url, "--plan") == 0
    with member_server() as other:
        other.said = {"node": 2, "leader": None, "standing": "following", "groups": {"0": {**GROUP, "end": [4, 1]}}}
        assert exit_code("cluster", "unsafe-recover", "1", "--url", f"{server.url},{other.url}", "--plan") == 1
        assert other.fake.recovery.asked == []
    assert server.fake.recovery.asked == []
    printed = capsys.readouterr().out
    assert "warning: node 2 holds more of partition 0" in printed
    assert "partition 0 3/17" in printed


def test_nothing_is_given_up_without_a_word(server: MemberServer) -> None:
    """A script says --yes."""
    with pytest.raises(CommandFailed, match="needs --yes") as failed:
        run("cluster", "unsafe-recover", "1", "--url", server.url)
    assert (failed.value.exit_code, server.fake.recovery.asked) == (2, [])


def test_refusal_of_the_node_is_shown(server: MemberServer) -> None:
    """With its code, and what it says to do."""
    server.fake.recovery.refusal = OperatorError("node 2 leads", kind="leader_alive", hint="ask it")
    with pytest.raises(CommandFailed, match="leader_alive: node 2 leads") as refused:
        run("cluster", "unsafe-recover", "1", "--url", server.url, "--yes")
    assert refused.value.hint == "ask it"


def test_node_that_does_not_answer_cannot_continue(server: MemberServer) -> None:
    """The command asks it itself."""
    with pytest.raises(CommandFailed, match="node 2 does not answer"):
        run("cluster", "unsafe-recover", "2", "--url", server.url, "--yes")


def test_json_has_survivors_and_problems(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """For a script that chooses the survivor."""
    assert exit_code("cluster", "unsafe-recover", "1", "--url", server.url, "--plan", "--json") == 0
    assert orjson.loads(capsys.readouterr().out) == {
        "node": 1,
        "survivors": [{"node": 1, "ends": {"0": [3, 17]}}],
        "problems": [],
    }


def test_ends_are_compared_by_term_first() -> None:
    """A longer log of an older term holds less; a leader that is known is a majority that lives."""
    chosen = {"node": 1, "leader": None, "groups": {"0": {"end": [3, 9]}, "1022": {"end": [5, 5]}}}
    older, newer = (
        {"node": node, "groups": {"0": {"end": end}, "1022": {"end": [5, 6]}}} for node, end in ((2, [2, 99]), (3, [4, 1]))
    )
    assert recovery_problems(chosen, [chosen, older]) == ["node 2 holds more of the cluster's own group"]
    assert recovery_problems(chosen, [chosen, newer]) == ["node 3 holds more of partition 0, the cluster's own group"]
    assert recovery_problems({**chosen, "leader": 2}, []) == ["node 2 leads: a majority is alive"]
    led = {**chosen, "groups": {"1": {"end": [3, 9], "leader": 3}}}
    assert recovery_problems(led, []) == ["node 3 leads group 1: a majority is alive, or was a moment ago"]
    assert survivor_of(older) == {"node": 2, "ends": {"0": [2, 99], "1022": [5, 6]}}
