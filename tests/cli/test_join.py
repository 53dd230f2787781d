"""`cmdlog cluster join`: the number is free or expected here, the file lists the cluster as it is, no secret is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from tests.cli.member_server import CLUSTER_ID, NOBODY, MemberServer, member_server, run

PEER, URL = "127.0.0.1:7644", "http://127.0.0.1:8644"


@pytest.fixture
def server() -> Iterator[MemberServer]:
    """Node 1, which leads."""
    with member_server() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path, server: MemberServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster file of another node, where the command runs; it lists node 1 alone."""
    monkeypatch.chdir(tmp_path)
    member = MemberAddress(1, ("127.0.0.1", 7641), server.url)
    ClusterFile(CLUSTER_ID.bytes, "bank", (member,), {"partitions": 2}, "digest").save(tmp_path / "cluster.json")
    return tmp_path / "cluster.json"


def join(*more: str, node: str = "4", peer: str = PEER, client: str = URL) -> None:
    """The command as its help has it."""
    run("cluster", "join", node, "--cluster", "cluster.json", "--peer", peer, "--client", client, *more)


def test_free_number_is_added_and_the_file_written(server: MemberServer, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has the members of now, not those of the file; the command to start the node is printed."""
    join()
    assert server.fake.membership.asked == [("add", 4, {"peer": PEER, "client": URL})]
    made = ClusterFile.load(file.parent / "cluster-4.json")
    assert (made.cluster_id, made.genesis, made.nodes) == (CLUSTER_ID.bytes, "digest", (1, 2, 4))
    assert made.member(4) == MemberAddress(4, ("127.0.0.1", 7644), URL)
    assert "serve APP --data ./n4 --join cluster-4.json --node 4 --cluster-secret-file cluster.secret" in capsys.readouterr().out
    assert sorted(path.name for path in file.parent.iterdir()) == ["cluster-4.json", "cluster.json"]


@pytest.mark.parametrize("state", ["expected", "leaving_old", "joining", "admitted"])
def test_expected_node_is_not_added_again(server: MemberServer, file: Path, state: str) -> None:
    """An operator has added it; a second run finds the file that the first one wrote."""
    server.set_member(4, state, peer=PEER, client=URL)
    join()
    join()
    assert server.fake.membership.asked == []


def test_file_that_says_something_else_is_kept(server: MemberServer, file: Path) -> None:
    """It may be another node's."""
    (file.parent / "cluster-4.json").write_bytes(file.read_bytes())
    with pytest.raises(CommandFailed, match=r"cluster-4\.json exists already"):
        join()
    join("--to", "other.json")
    assert ClusterFile.load(file.parent / "other.json").nodes == (1, 2, 4)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("member", r"is in the cluster already \(member\), at h:7644"),
        ("leaving", r"is in the cluster already \(leaving\)"),
        ("expected", "is expected at h:7644"),
    ],
)
def test_taken_number_is_refused(server: MemberServer, file: Path, state: str, error: str) -> None:
    """With the way to take its place."""
    server.set_member(4, state, client=URL)
    with pytest.raises(CommandFailed, match=error) as failed:
        join()
    assert "--peer" in failed.value.hint
    assert (server.fake.membership.asked, (file.parent / "cluster-4.json").exists()) == ([], False)


def test_member_at_that_place_has_joined(server: MemberServer, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator whose answer was lost asks again, perhaps after other nodes came and went: nothing changes, the exit is 0."""
    join()
    first = (file.parent / "cluster-4.json").read_bytes()
    server.set_member(4, "member", peer=PEER, client=URL)
    server.set_member(2, "removed")
    capsys.readouterr()
    join()
    shown = capsys.readouterr().out
    assert "node 4 is a member already, at 127.0.0.1:7644" in shown
    assert "cmdlog cluster replace 4" in shown
    join("--plan")
    assert "node 4 is a member already: nothing is left to ask for" in capsys.readouterr().out
    join("--json")
    assert orjson.loads(capsys.readouterr().out)["already"] is True
    assert len(server.fake.membership.asked) == 1
    assert (file.parent / "cluster-4.json").read_bytes() == first


def test_member_gets_a_file_that_is_missing(server: MemberServer, file: Path) -> None:
    """The earlier run may have ended between the addition and the file; a file of something else is kept."""
    server.set_member(4, "member", peer=PEER, client=URL)
    join()
    assert ClusterFile.load(file.parent / "cluster-4.json").nodes == (1, 2, 4)
    (file.parent / "cluster-4.json").write_bytes(file.read_bytes())
    with pytest.raises(CommandFailed, match=r"cluster-4\.json exists already"):
        join()


def test_removed_number_is_free_again(server: MemberServer, file: Path) -> None:
    """And a removed node is not in the new file."""
    server.set_member(2, "removed")
    server.set_member(4, "removed")
    join()
    assert ClusterFile.load(file.parent / "cluster-4.json").nodes == (1, 4)


def test_plan_asks_and_writes_nothing(server: MemberServer, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows what the addition would mean."""
    join("--plan")
    assert server.fake.membership.asked == [("add", 4, {"peer": PEER, "client": URL, "plan": True})]
    assert not (file.parent / "cluster-4.json").exists()
    assert "after add" in capsys.readouterr().out


def test_file_of_another_cluster_is_refused(server: MemberServer, file: Path) -> None:
    """Whatever its addresses lead to."""
    other = ClusterFile(bytes(16), "bank", ClusterFile.load(file).members, {"partitions": 2}, "digest")
    file.unlink()
    other.save(file)
    with pytest.raises(CommandFailed, match="is a node of"):
        join()


def test_cluster_that_does_not_run_is_not_joined(server: MemberServer, file: Path) -> None:
    """Nobody could admit the node."""
    other = ClusterFile(CLUSTER_ID.bytes, "bank", (MemberAddress(1, ("h", 1), NOBODY),), {"partitions": 2}, "digest")
    file.unlink()
    other.save(file)
    with pytest.raises(CommandFailed, match=r"no node of cluster\.json answers"):
        join()


@pytest.mark.parametrize("peer", ["h", "h:0", "h:7641"])
def test_address_is_one_and_free(server: MemberServer, file: Path, peer: str) -> None:
    """host:port, and no other member's."""
    with pytest.raises(CommandFailed, match=f"--peer {peer}") as failed:
        join(peer=peer)
    assert (failed.value.exit_code, server.fake.membership.asked) == (2, [])
