"""Commands that change members: what reaches the leader, what is shown before and after, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import orjson
import pytest
import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster import change_progress, status_reader
from cmdlog.cli.cluster.member_commands import show_plan, stage_row
from cmdlog.cluster.membership.operator_desk import RefusedBecause
from cmdlog.node.outcome import NotLeading
from tests.api.fake_desk import COPY, STAGE, refused
from tests.cli.member_server import MemberServer, exit_code, member_server, run

KINDS = ("add", "remove", "replace", "retire", "transfer")


@pytest.fixture
def server() -> Iterator[MemberServer]:
    """Node 1, which leads."""
    with member_server() as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_change_is_asked_of_the_leader(server: MemberServer, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options none are sent; with --json the answer is printed as it came."""
    run("cluster", kind, "4", "--url", server.url, "--json")
    told = orjson.loads(capsys.readouterr().out)
    assert server.fake.membership.asked == [(kind, 4, {})]
    assert (told["kind"], told["node"], told["version"]) == (kind, 4, 41)


def test_options_reach_the_leader(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Addresses and base; what comes next is said."""
    run("cluster", "add", "4", "--url", server.url, "--peer", "h:1", "--client", "http://h", "--base", "41")
    assert server.fake.membership.asked == [("add", 4, {"peer": "h:1", "client": "http://h", "base": 41})]
    assert "node 4 is expected, version 41\nstart node 4:" in capsys.readouterr().out


def test_plan_changes_nothing_and_shows_the_quorum(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after, with warnings; exit code 0."""
    server.fake.membership.warnings = ["partition 1 would have one whole copy"]
    assert exit_code("cluster", "remove", "4", "--url", server.url, "--plan") == 0
    printed = capsys.readouterr().out
    assert server.fake.membership.asked == [("remove", 4, {"plan": True})]
    for part in ("after remove", "1, 2, 3, 4", "1 of 3", "warning: partition 1 would have one whole copy", "at version 41"):
        assert part in printed


def test_plan_warns_of_the_last_copy_of_history(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the leader's own warnings, as text and with --json: node 2 does not answer."""
    archive = {"window_s": 86_400.0, "oldest_txn": "0", "oldest_time": None}
    server.node.status = lambda: {**server.status(), "archive": archive}  # type: ignore[method-assign]
    server.fake.membership.warnings = ["partition 1 would have one whole copy"]
    assert exit_code("cluster", "replace", "1", "--url", server.url, "--plan") == 0
    printed = capsys.readouterr().out
    assert "warning: partition 1 would have one whole copy" in printed
    assert "warning: last_history: " in printed
    assert exit_code("cluster", "retire", "1", "--url", server.url, "--plan", "--json") == 0
    own, history = orjson.loads(capsys.readouterr().out)["plan"]["warnings"]
    assert (own, history.partition(":")[0]) == ("partition 1 would have one whole copy", "last_history")


def test_plan_that_would_be_refused_ends_with_one(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """So that a script can ask first."""
    server.fake.membership.refusal = refused(RefusedBecause.LAST_COPY, "node 4 holds the last copy")
    assert exit_code("cluster", "remove", "4", "--url", server.url, "--plan") == 1
    assert "refused as last_copy: node 4 holds the last copy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("because", "code", "exit_with"),
    [
        (RefusedBecause.STALE_BASE, "stale_base", 1),
        (RefusedBecause.OPERATION_UNDER_WAY, "operation_under_way", 1),
        (RefusedBecause.UNKNOWN_NODE, "unknown_node", 1),
        (RefusedBecause.BAD_REQUEST, "invalid_parameters", 2),
    ],
)
def test_refusal_is_named(server: MemberServer, because: RefusedBecause, code: str, exit_with: int) -> None:
    """By its code, and with the words of the leader."""
    server.fake.membership.refusal = refused(because, "node 3 is joining")
    with pytest.raises(CommandFailed, match=f"{code}: node 3 is joining") as failed:
        run("cluster", "add", "4", "--url", server.url)
    assert failed.value.exit_code == exit_with


def test_force_needs_a_word_where_nobody_can_be_asked(server: MemberServer) -> None:
    """A script says --yes; nothing was asked of the cluster but the plan."""
    with pytest.raises(CommandFailed, match="needs --yes") as failed:
        run("cluster", "remove", "4", "--url", server.url, "--force")
    assert failed.value.exit_code == 2
    assert server.fake.membership.asked == [("remove", 4, {"force": True, "plan": True})]
    run("cluster", "remove", "4", "--url", server.url, "--force", "--yes")
    assert server.fake.membership.asked[-1] == ("remove", 4, {"force": True})


@pytest.mark.parametrize("agrees", [True, False])
def test_force_shows_the_plan_and_asks(
    server: MemberServer, agrees: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal; who says no changes nothing."""

    def confirm(question: str, **_: object) -> None:
        assert "recorded permanently" in question
        if not agrees:
            raise typer.Abort

    monkeypatch.setattr(status_reader, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "confirm", confirm)
    ends = exit_code("cluster", "remove", "4", "--url", server.url, "--force")
    assert "after remove" in capsys.readouterr().out
    assert (ends, len(server.fake.membership.asked)) == ((0, 2) if agrees else (1, 1))


def test_follower_is_asked_and_the_leader_found(server: MemberServer) -> None:
    """The URL of any node is enough: it names the members, and the one that leads gets the request."""
    with member_server() as follower:
        follower.node.sequencer.admission.refusal = NotLeading("node 1 leads", server.url, 1)
        follower.said = {"node": 2, "standing": "following"}
        follower.fake.membership.members_now[0]["client"] = server.url
        server.set_member(2, "member", client=follower.url)
        follower.set_member(2, "member", client=follower.url)
        run("cluster", "retire", "2", "--url", follower.url)
        assert follower.fake.membership.asked == []
    assert server.fake.membership.asked == [("retire", 2, {})]


def test_wait_follows_a_node_until_it_votes(
    server: MemberServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through its states; off a terminal each is a note, and the numbers of a copy are not."""
    server.fake.copies.under_way.clear()
    steps: Iterator[Callable[[], None]] = iter([
        lambda: server.set_member(4, "joining"),
        lambda: server.set_member(4, "admitted"),
        lambda: server.fake.copies.under_way.append({**COPY, "percent": 80.0}),
        server.fake.copies.under_way.clear,
        lambda: server.set_member(4, "member"),
    ])  # fmt: skip
    server.set_member(4, "expected")
    monkeypatch.setattr(change_progress, "time", SimpleNamespace(sleep=lambda _: next(steps)()))
    run("cluster", "add", "4", "--url", server.url, "--wait")
    printed = capsys.readouterr()
    assert printed.out == "node 4 is level, and votes\n"
    assert [line.partition(":")[2].strip()[:12] for line in printed.err.splitlines()] == [
        "waits until ", "node 4 is ad", "node 4 catch", "copying 80 %", "node 4 catch", "node 4 is le",
    ]  # fmt: skip


def test_interrupted_wait_says_that_the_change_continues(server: MemberServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 130, and where to look."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    server.set_member(4, "joining")
    monkeypatch.setattr(change_progress, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(CommandFailed, match="interrupted; the add of node 4 continues in the cluster") as failed:
        run("cluster", "add", "4", "--url", server.url, "--wait")
    assert (failed.value.exit_code, "cluster status" in failed.value.hint) == (130, True)


def test_copy_is_cancelled_at_its_source(server: MemberServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The node that says that it gives the copy is asked; without one there is nothing to cancel."""
    run("cluster", "cancel-copy", "4", "--url", server.url, "--json")
    assert orjson.loads(capsys.readouterr().out) == {"node": 4, "sources": [1]}
    with pytest.raises(CommandFailed, match="no copy to node 4 is running"):
        run("cluster", "cancel-copy", "4", "--url", server.url)


@pytest.mark.parametrize("kind", [*KINDS, "join", "move-replica", "unsafe-recover", "cancel-copy"])
def test_help_teaches_by_examples(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command shows how it is given."""
    assert exit_code("cluster", kind, "--help") == 0
    assert f"cmdlog cluster {kind}" in capsys.readouterr().out


def test_stage_is_a_row() -> None:
    """Without a quorum that is said; nobody is a dash."""
    assert stage_row(STAGE) == ["now", "1, 2, 3", "-", "2", "1, 2, 3", "1 of 3"]
    assert stage_row({**STAGE, "live": [1], "survives": -1, "learners": [4]})[2:] == ["4", "2", "1", "no quorum"]


def test_request_that_is_done_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A repetition would change nothing."""
    plan = {"stages": [STAGE], "warnings": [], "refusal": None}
    show_plan({"kind": "add", "node": 4, "state": "joining", "version": 3, "already": True, "plan": plan})
    assert capsys.readouterr().out.startswith("add of node 4: already done, or in progress (node is joining)\n")
