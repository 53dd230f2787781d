"""`cmdlog deploy` against a running server: routes, descriptions and answers follow without a restart."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cmdlog.cli.load_app import load_application
from cmdlog.client import Client
from cmdlog.errors import RequestRefused
from cmdlog.testing.server import Server
from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME
from procedures.code.bundle import capture_bundle
from tests.commands import Command
from tests.node.deployed import OTHER, SOURCE, forget_app

pytestmark = pytest.mark.slow


def write_app(folder: Path, version: int, *, more: str = "", name: str = "tally") -> None:
    """Puts a version of the application into the folder, where it replaces the one before."""
    forget_app()
    first = OTHER.format(version=version) if version > 1 else ""
    (folder / "tally_app.py").write_text(
        SOURCE.format(version=version, name=name, columns=more, more_tables="", first=first, last="")
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the application, as an operator stands in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    write_app(folder, 1)
    return folder


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server of what `tally_app` is at its start."""
    server = Server("tally_app:db", folder, partitions=2)
    server.start()
    try:
        yield server
    finally:
        server.close()


def test_a_running_server_gets_new_code_and_the_former_one_back(home: Path, tmp_path: Path, command: Command) -> None:
    """A plan changes nothing; a deploy adds a procedure and a column; a rollback takes the procedure away; a restart keeps it."""
    with serving(tmp_path) as server:
        client, url = server.client, server.url
        assert client.call("hit", id=1) == 1
        write_app(home, 2, more=', Column("note", Text)')
        address = ("--url", url, "--json")
        code, plan = command("deploy", "tally_app:db", "--plan", *address)
        assert (code, plan["version"], plan["changed"]) == (0, 2, True)
        assert plan["partitions"] == {number: ["ALTER TABLE tally ADD COLUMN note TEXT"] for number in ("0", "1")}
        assert client.call("hit", id=1) == 1
        code, answer = command("deploy", "tally_app:db", *address)
        assert (code, answer["version"], answer["partitions"]) == (0, 2, plan["partitions"])
        assert client.call("hit", id=1) == 2
        assert client.call("only_in_2", id=1) == 2
        assert "/v1/procedures/only_in_2" in httpx.get(url + "/openapi.json").json()["paths"]
        assert "only_in_2" in httpx.get(url + "/docs").text
        assert "only_in_2" in {procedure["name"] for procedure in client.procedures()}
        assert client.status()["catalog_version"] == 2
        code, answer = command("deploy", "tally_app:db", *address)
        assert (code, answer["changed"], answer["version"]) == (0, False, 2)
        write_app(home, 1)
        server.stop()
        server.start()
        assert client.call("hit", id=1) == 2, "a restart with the older program undoes no deploy"
        code, answer = command("deploy", "--rollback", "--to", "1", *address)
        assert (code, answer["version"]) == (0, 3)
        assert client.call("hit", id=1) == 1


def test_only_the_local_token_lets_code_in(home: Path, tmp_path: Path) -> None:
    """Without it no code runs, not even for a plan. It is in one file, which a stop removes, and every start makes another."""
    marker = tmp_path / "ran"
    with serving(tmp_path) as server:
        write_app(home, 2)
        with (home / "tally_app.py").open("a") as program:
            program.write(f"\nopen({str(marker)!r}, 'w').close()\n")
        bundle = capture_bundle(load_application("tally_app:db"), "tally_app:db")
        marker.unlink()  # of the import here
        with Client(server.url, token="") as stranger:
            for plan in (True, False):
                with pytest.raises(RequestRefused, match="local token"):
                    stranger.deploy(bundle=bundle, plan=plan)
        assert not marker.exists()
        token, shown = server.token, server.data / LOCAL_TOKEN_NAME
        with Client(server.url, token=token) as owner:
            assert owner.deploy(bundle=bundle, plan=True)["version"] == 2
            assert marker.exists()
            owner.take_snapshot()
            described = str(owner.status()) + httpx.get(f"{server.url}/metrics").text + server.log.read_text()
        assert token not in described
        holding = [path for path in server.data.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
        assert (holding, stat.S_IMODE(shown.stat().st_mode)) == ([shown], 0o600)
        server.stop()
        assert not shown.exists()
        server.start()
        assert server.token not in ("", token)


def test_what_cannot_be_deployed_changes_nothing(home: Path, tmp_path: Path, command: Command) -> None:
    """Code of another database, and usage that contradicts itself."""
    with serving(tmp_path) as server:
        client, url = server.client, server.url
        write_app(home, 2, name="other")
        code, answer = command.text("deploy", "tally_app:db", "--url", url)
        assert (code, "belongs to database 'tally', the bundle to 'other'" in answer) == (1, True)
        assert client.call("hit", id=1) == 1
        code, answer = command.text("deploy", "--rollback", "--url", url)
        assert (code, "no_former_code" in answer) == (1, True)
    for wrong in (("deploy",), ("deploy", "tally_app:db", "--to", "1")):
        assert command(*wrong)[0] == 2
