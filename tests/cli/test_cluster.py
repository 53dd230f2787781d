"""`cmdlog cluster`, and what `serve` says when a node of a cluster is not named rightly."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from cmdlog.cli.app import make_program
from cmdlog.cli.cli_errors import CommandFailed, explain
from cmdlog.cli.output import out
from cmdlog.cli.server.settings_sources import load_settings
from cmdlog.cluster.cluster_file import BadClusterFile, BadSecret, ClusterFile, read_secret
from cmdlog.cluster.transport.peer_transport import BadPeerCertificate
from cmdlog.member.member_ground import MemberGround
from cmdlog.node.boot import OtherApplication
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.errors import Foreign
from tests.client.scripted import ScriptedServer, Step, http, problem

APP = "procedures.samples.bank:db"
MEMBER = "--member=1=127.0.0.1:7642,http://127.0.0.1:8642"
PARTS = {"0": {"committed": 7, "applied": 6}, "1": {"committed": 1, "applied": 1}}


def run(*arguments: str) -> None:
    """A command in this process; its errors are raised."""
    make_program()(list(arguments), standalone_mode=False)


def init(folder: Path, *more: str, app: str = APP, member: str = MEMBER) -> ClusterFile:
    """A cluster below the folder."""
    run("cluster", "init", app, member, *more, "--to", str(folder / "c.json"), "--cluster-secret-file", str(folder / "secret"))
    return ClusterFile.load(folder / "c.json")


def joined(folder: Path, **changed: str) -> list[str]:
    """`serve` of node 1, with some options changed."""
    options = {"app": APP, "data": "n1", "join": "c.json", "node": "1", "secret": "secret", **changed}
    return [
        "serve", options["app"], "--data", str(folder / options["data"]), "--join", str(folder / options["join"]),
        "--node", options["node"], "--cluster-secret-file", str(folder / options["secret"]), "--port", "0", "--peer-port", "0",
    ]  # fmt: skip


# -- init ------------------------------------------------------------------------------------------------------------------------


def test_init_writes_the_file_and_a_secret_that_others_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Members ascend, the secret is not in the file, and the command to start a node is printed."""
    cluster = init(tmp_path, "--member=3=[::1]:7643,https://three", "--member=2=b:7642,http://b:8642", "--partitions", "3")
    assert [(m.node, m.peer, m.client) for m in cluster.members] == [
        (1, ("127.0.0.1", 7642), "http://127.0.0.1:8642"), (2, ("b", 7642), "http://b:8642"), (3, ("::1", 7643), "https://three"),
    ]  # fmt: skip
    assert (cluster.database, cluster.shape["partitions"]) == ("bank", 3)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    read_secret(tmp_path / "secret")
    assert (tmp_path / "secret").read_text().strip() not in (tmp_path / "c.json").read_text()
    assert f"serve {APP} --join {tmp_path / 'c.json'} --node 1" in capsys.readouterr().out


def test_init_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster file may be a running cluster's; a secret may be one that the nodes have."""
    (tmp_path / "secret").write_text("ab" * 32)
    init(tmp_path, "--json")
    assert orjson.loads(capsys.readouterr().out)["secret_made"] is False
    before = (tmp_path / "c.json").read_bytes()
    with pytest.raises(CommandFailed, match=r"c\.json is there already"):
        init(tmp_path)
    assert (tmp_path / "c.json").read_bytes() == before
    assert (tmp_path / "secret").read_text() == "ab" * 32


@pytest.mark.parametrize(
    "member",
    ["1", "x=h:1,http://h", "0=h:1,http://h", "1=h,http://h", "1=h:0,http://h", "1=h:99999,http://h", "1=h:1", "1=h:1,ftp://h", "=h:1,http://h"],
)  # fmt: skip
def test_member_that_is_not_one_is_shown(tmp_path: Path, member: str) -> None:
    """With the form that is meant; nothing is written."""
    with pytest.raises(CommandFailed, match="NODE=HOST:PEERPORT,URL") as failed:
        init(tmp_path, member=f"--member={member}")
    assert failed.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_nodes_are_distinct_and_few(tmp_path: Path) -> None:
    """A number twice, or more than a group may have."""
    for more in ([MEMBER], [f"--member={node}=h:{node},http://h" for node in range(2, 11)]):
        with pytest.raises(CommandFailed, match="the nodes are") as failed:
            init(tmp_path, *more)
        assert failed.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("2=b:7642,http://A:8642", "the URL of node 2 and the URL of node 1 are both a:8642"),
        ("2=0.0.0.0:7642,http://b:8642", "node 2: the peer address 0.0.0.0:7642"),
        ("2=[::]:7642,http://b:8642", "node 2: the peer address [::]:7642"),
        ("2=b:7642,http://0.0.0.0:8642", "node 2: the URL 0.0.0.0:8642"),
        ("2=b:7642,http://b:7642", "the URL of node 2 and the peer address of node 2"),
        ("2=a:8642,http://b:8642", "the peer address of node 2 and the URL of node 1"),
        ("2=a:7642,http://b:8642", "nodes 1 and 2 have the same peer address a:7642"),
        ("2=b:7642,http://b:0", "node 2: the URL b:0 is any free port"),
        ("2=0:7642,http://b:8642", "node 2: the peer address 0:7642 is where a program listens"),
        ("2=[::ffff:0.0.0.0]:7642,http://b:8642", "is where a program listens"),
        ("2=224.0.0.1:7642,http://b:8642", "is no address of one machine"),
        ("2=b:7642,http://255.255.255.255:8642", "is no address of one machine"),
        ("2=b c:7642,http://b:8642", "node 2: the peer address b c:7642 names no host"),
        ("2=b:7642,http://b:8642?of=me", "has more than scheme, host, port and path"),
        ("2=127.1:7642,http://localhost:7642", "are both localhost:7642"),
    ],
)
def test_addresses_that_cannot_work_are_refused(tmp_path: Path, more: str, told: str) -> None:
    """One place for two listeners, or one that nobody else can call; the nodes are named, and nothing is written."""
    with pytest.raises(CommandFailed) as failed:
        init(tmp_path, f"--member={more}", member="--member=1=a:7642,http://a:8642")
    assert told in str(failed.value)
    assert failed.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_one_machine_has_several_nodes_by_the_file_alone(tmp_path: Path) -> None:
    """Each listens at the port of its own URL, whatever its name for loopback; a setting says otherwise."""
    more = "--member=2=127.0.0.1:7643,http://localhost:8643"
    cluster = init(tmp_path, more, member="--member=1=127.0.0.1:7642,http://127.0.0.1:8642")
    cases: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {}), (2, {"port": 9000})]
    found = [
        load_settings(flags, environ={}, defaults=MemberGround(cluster, node, Secret(b"the secret of a cluster!")).listening())
        for node, flags in cases
    ]
    assert [settings.port for settings in found] == [8642, 8643, 9000]


# -- serve -----------------------------------------------------------------------------------------------------------------------


def test_options_of_a_member_need_each_other(tmp_path: Path) -> None:
    """--join names node and secret; without it none of the others means anything."""
    init(tmp_path)
    join, node, secret = (
        ["--join", str(tmp_path / "c.json")],
        ["--node", "1"],
        ["--cluster-secret-file", str(tmp_path / "secret")],
    )
    for given in (join, join + node, join + secret):
        with pytest.raises(CommandFailed, match="--join needs --node and --cluster-secret-file") as failed:
            run("serve", APP, "--data", str(tmp_path / "n1"), *given)
        assert (failed.value.exit_code, failed.value.hint) == (2, f"{tmp_path / 'c.json'} lists nodes 1")
    cert, authority = ["--peer-cert-file", str(tmp_path / "none.pem")], ["--peer-ca-file", str(tmp_path / "none.pem")]
    for part in (cert, authority, ["--peer-key-file", "key.pem"]):
        with pytest.raises(CommandFailed, match="needs --peer-cert-file and --peer-ca-file"):
            run("serve", APP, "--data", str(tmp_path / "n1"), *join, *node, *secret, *part)
    with pytest.raises(BadPeerCertificate, match=r"none\.pem"):
        run("serve", APP, "--data", str(tmp_path / "n1"), *join, *node, *secret, *cert, *authority)
    for given in (node, secret, ["--peer-host", "h"], ["--peer-port", "0"], cert, authority):
        with pytest.raises(CommandFailed, match="are for a node of a cluster") as failed:
            run("serve", APP, "--data", str(tmp_path / "n1"), *given)
        assert failed.value.exit_code == 2
    assert not (tmp_path / "n1").exists()


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"node": "2"}, BadClusterFile, "node 2 is not a member: the cluster file lists 1"),
        ({"join": "gone.json"}, BadClusterFile, "gone.json: No such file"),
        ({"join": "secret"}, BadClusterFile, "secret is no cluster file"),
        ({"secret": "gone"}, BadSecret, "gone cannot be read"),
        ({"secret": "c.json"}, BadSecret, "others may use the cluster's secret"),
        ({"secret": "short"}, BadSecret, "a secret has 16 to 64"),
    ],
)
def test_file_that_does_not_fit_ends_serve(tmp_path: Path, changed: dict[str, str], error: type[Exception], told: str) -> None:
    """Exit code 2 and no directory, whatever is wrong with what was given."""
    init(tmp_path)
    (tmp_path / "c.json").chmod(0o644)
    (tmp_path / "short").write_text("few")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(error, match=told) as failed:
        run(*joined(tmp_path, **changed))
    shown = explain(failed.value)
    assert shown is not None
    assert shown.exit_code == 2
    assert not (tmp_path / "n1").exists()


@pytest.mark.slow  # the server is made before its node is opened
def test_other_program_and_other_cluster_are_refused(tmp_path: Path) -> None:
    """Before a directory is made; and a directory that was made stays its own cluster's."""
    init(tmp_path)
    with pytest.raises(OtherApplication, match="is for database 'bank', not for 'tpcc'") as other:
        run(*joined(tmp_path, app="bench._tpcc:db"))
    assert other.value.exit_code == 11
    assert not (tmp_path / "n1" / "instance.json").exists()
    run_member_start(tmp_path)
    (tmp_path / "c.json").unlink()
    init(tmp_path)
    with pytest.raises(Foreign, match="another cluster"):
        run(*joined(tmp_path))


def run_member_start(folder: Path) -> None:
    """Makes the directory of node 1, as a first start does."""
    from cmdlog.member.member_start import ensure_member
    from cmdlog.node.assembly import MACHINE
    from cmdlog.node.settings import Settings
    from procedures.samples.bank import db

    settings = Settings(segment_bytes=1 << 20, segments=8, log_reserve_bytes=64 << 10, call_bytes_max=100_000)
    cluster, files, tried = ClusterFile.load(folder / "c.json"), MACHINE.files, list[str]()
    made = ensure_member(
        files, str(folder / "n1"), settings, db, target=APP, cluster=cluster, node=1,
        try_code=lambda bundle, _settings: tried.append(bundle.target),
    )  # fmt: skip
    assert tried == [APP]
    assert made is not None


# -- status ----------------------------------------------------------------------------------------------------------------------


def answer(told: dict[str, Any]) -> Step:
    """A server's status."""
    return Step("body read", reply=http(200, json.dumps(told).encode()))


def a_status(url: str, **changed: Any) -> dict[str, Any]:
    """Node 1 of a cluster of itself and one that does not answer."""
    told = {
        "state": "running", "node": 1, "standing": "leading", "leader": 1,
        "members": [{"node": 1, "client": url, "peer": "h:1"}, {"node": 2, "client": "http://127.0.0.1:1", "peer": "h:2"}],
        "groups": {"0": {"term": 4, "leader": 1}, "1": {"term": 6, "leader": 1}}, **changed,
    }  # fmt: skip
    return {"cluster": told, "partitions": PARTS}


def failed_status(*arguments: str) -> int:
    """The exit code."""
    try:
        make_program()(["cluster", "status", *arguments], standalone_mode=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a program ends")


def test_status_asks_every_node_that_one_names(capsys: pytest.CaptureFixture[str]) -> None:
    """What each says of itself; one that does not answer is a row, not an error, and the exit code says so."""
    with ScriptedServer([]) as server:
        server._steps.append(answer(a_status(server.url)))
        assert failed_status("--url", server.url, "--timeout", "10", "--json") == 18
    told = orjson.loads(capsys.readouterr().out)
    first, second = told["nodes"]
    assert (first["url"], first["node"], first["standing"], first["partitions"]) == (server.url, 1, "leading", PARTS)
    assert (second["node"], second["url"], second["state"]) == (2, "http://127.0.0.1:1", "unreachable")
    assert "no answer" in second["error"]
    assert (told["health"]["verdict"], told["health"]["leader"]) == ("degraded", 1)
    assert [finding["code"] for finding in told["health"]["findings"]] == ["unreachable"]


def test_status_finds_the_nodes_in_the_cluster_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster of which no node runs is shown, too."""
    init(tmp_path, member="--member=1=127.0.0.1:7642,http://127.0.0.1:1")
    capsys.readouterr()
    assert failed_status("--cluster", str(tmp_path / "c.json"), "--timeout", "10") == 19
    printed = capsys.readouterr().out
    assert "unavailable: no leader" in printed
    assert "node 1 is unreachable" in printed


def test_status_of_a_node_alone_is_an_error() -> None:
    """It has no cluster: the other command shows it."""
    with ScriptedServer([answer({"partitions": PARTS})]) as server, pytest.raises(CommandFailed, match="is a node alone"):
        run("cluster", "status", "--url", server.url)


def test_healthy_cluster_ends_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """A script needs no more than the exit code; people see who leads, and the newest term."""
    with ScriptedServer([]) as server:
        alone = a_status(server.url, members=[{"node": 1, "client": server.url, "peer": "h:1"}])
        server._steps.append(answer(alone))
        run("cluster", "status", "--url", server.url)
    assert "healthy: node 1 leads, term 6" in capsys.readouterr().out


def test_watch_shows_every_look_until_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of JSON each; a node that goes away meanwhile is the next line's news, and Ctrl-C is the orderly end."""
    naps = iter([None, KeyboardInterrupt()])

    def nap(_seconds: float) -> None:
        found = next(naps)
        if found is not None:
            raise found

    monkeypatch.setattr(out, "json", True)
    monkeypatch.setattr("cmdlog.cli.server.status.time", SimpleNamespace(sleep=nap))  # other threads may sleep, too
    with ScriptedServer([]) as server:
        alone = a_status(server.url, members=[{"node": 1, "client": server.url, "peer": "h:1"}])
        server._steps += [answer(alone), Step("body read", reply=problem(503, "not_ready"))]
        run("cluster", "status", "--url", server.url, "--watch")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["health"]["verdict"] for line in lines] == ["healthy", "unavailable"]
    assert [line["nodes"][0]["state"] for line in lines] == ["running", "bootstrapping"]
