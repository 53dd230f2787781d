"""`cmdlog token`: what it writes lets in who it should, and a token is nowhere but on standard output."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cmdlog.api.gate.auth import Credentials
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.token_file import PREFIX, parse_file
from cmdlog.cli.app import make_program
from cmdlog.cli.output import out
from cmdlog.cli.server.tokens import add

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """The program in this process."""
    program = make_program()

    def run_it(*arguments: str | Path) -> Result:
        out.json = False
        return CliRunner().invoke(program, ["token", *map(str, arguments)])

    return run_it


def added(run: Run, file: Path, name: str = "shop", *more: str) -> dict[str, Any]:
    """A new credential, as `--json` tells it."""
    result = run("add", file, "--name", name, "--role", "invoke", "--json", *more)
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def lets_in(file: Path, token: str) -> bool:
    """Whether a server that starts now takes the token."""
    try:
        Credentials(file).authenticate(b"Bearer " + token.encode())
    except Problem:
        return False
    return True


def test_added_token_lets_in_and_is_not_in_the_file(run: Run, tmp_path: Path) -> None:
    """The token is 256 bits behind its prefix, works at once, and only its hash is kept, readable by the owner alone."""
    file = tmp_path / "tokens"
    told = added(run, file)
    assert told["token"].startswith(PREFIX)
    assert len(told["token"]) == len(PREFIX) + 43
    assert told["token"] != added(run, file)["token"]
    assert lets_in(file, told["token"])
    assert told["token"][len(PREFIX) :] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["tokens"]


def test_token_alone_is_on_standard_output(run: Run, tmp_path: Path) -> None:
    """A pipe gets the token and nothing else; people read the rest on standard error."""
    result = run("add", tmp_path / "tokens", "--name", "shop", "--role", "read", "--role", "invoke", "--expires", "12h")
    assert lets_in(tmp_path / "tokens", result.stdout.strip())
    assert "only time" in result.stderr


def test_list_shows_everything_but_tokens(run: Run, tmp_path: Path) -> None:
    """Names, ids, roles and expiry; admin is shown as the one role that it is."""
    file = tmp_path / "tokens"
    told = added(run, file, "shop", "--expires", "2999-01-01T01:00:00+01:00", "--role", "admin")
    listed = json.loads(run("list", file, "--json").stdout)
    row = {"name": "shop", "id": told["id"], "roles": ["admin"], "expires": "2999-01-01T00:00:00Z", "expired": False}
    assert listed == {"credentials": [row]}
    shown = run("list", file).stdout
    assert "2999-01-01" in shown
    assert told["token"] not in shown


def test_removed_token_is_withdrawn_and_the_rest_stays(run: Run, tmp_path: Path) -> None:
    """By name, or one of a name by its id; comments and other lines keep their place."""
    file = tmp_path / "tokens"
    old, new, other = added(run, file), added(run, file), added(run, file, "other")
    file.write_text("# ours\n" + file.read_text() + "\n# the end\n")
    assert run("remove", file, "--name", "shop", "--id", old["id"]).exit_code == 0
    assert [lets_in(file, told["token"]) for told in (old, new, other)] == [False, True, True]
    assert json.loads(run("remove", file, "--name", "shop", "--json").stdout)["removed"][0]["id"] == new["id"]
    assert [lets_in(file, told["token"]) for told in (old, new, other)] == [False, False, True]
    assert "# ours" in file.read_text()
    assert "# the end" in file.read_text()
    assert run("remove", file, "--name", "shop").exit_code == 1


def test_last_credential_can_be_removed(run: Run, tmp_path: Path) -> None:
    """What is left is a list of nobody, which running servers follow; an empty file would look half written."""
    file = tmp_path / "tokens"
    added(run, file)
    file.write_text(file.read_text().splitlines()[1] + "\n")  # without the head
    assert run("remove", file, "--name", "shop").exit_code == 0
    assert parse_file(file.read_bytes()).credentials == ()
    added(run, file, "again")


def test_a_token_itself_is_no_token_file(run: Run, tmp_path: Path) -> None:
    """Nor is a file that other users may write; neither is edited."""
    file = tmp_path / "tokens"
    file.write_text("plain-token-of-23-chars\n")
    result = run("add", file, "--name", "shop", "--role", "read")
    assert "line 1" in str(result.exception)
    assert "plain-token" not in str(result.exception)
    file.write_text("# nobody\n")
    file.chmod(0o666)
    for arguments in (("add", file, "--name", "shop", "--role", "read"), ("list", file)):
        assert "other users may write" in str(run(*arguments).exception)
    assert file.read_text() == "# nobody\n"


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (["--name", "shop"], 2),
        (["--role", "read"], 2),
        (["--name", "shop", "--role", "root"], 2),
        (["--name", "", "--role", "read"], 2),
        (["--name", "a b", "--role", "read"], 2),
        (["--name", "-x", "--role", "read"], 2),
        (["--name", "caf\u00e9", "--role", "read"], 2),
        (["--name", "x" * 64, "--role", "read"], 2),
        (["--name", "a\nb read sha256:0", "--role", "read"], 2),
        (["--name", "shop", "--role", "read", "--expires", "30"], 2),
        (["--name", "shop", "--role", "read", "--expires", "0d"], 2),
        (["--name", "shop", "--role", "read", "--expires", "2020-01-01T00:00:00Z"], 2),
        (["--name", "shop", "--role", "read", "--expires", "2999-01-01T00:00:00"], 2),
        (["--name", "shop", "--role", "read", "--expires", "2999-01-01"], 2),
    ],
)
def test_bad_usage_writes_nothing(run: Run, tmp_path: Path, options: list[str], exit_code: int) -> None:
    """Whatever cannot be meant is refused before the file is touched."""
    result = run("add", tmp_path / "tokens", *options)
    assert result.exit_code == exit_code or getattr(result.exception, "exit_code", None) == exit_code
    assert os.listdir(tmp_path) == []


def test_broken_file_is_not_edited(run: Run, tmp_path: Path) -> None:
    """A file that is not understood stays as it is, and the message names the line."""
    file = tmp_path / "tokens"
    file.write_text("# head\nshop invoke sha256:short\n")
    result = run("add", file, "--name", "other", "--role", "read")
    assert "line 2" in str(result.exception)
    assert file.read_text() == "# head\nshop invoke sha256:short\n"
    assert getattr(run("list", tmp_path / "none").exception, "exit_code", None) == 2


def test_editors_at_once_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everybody's credential is in the file at the end: one edits at a time."""
    file = tmp_path / "tokens"
    names = [f"name{number}" for number in range(8)]
    threads = [threading.Thread(target=add, args=(file, name, ["read"])) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.name for one in parse_file(file.read_bytes()).credentials) == names


def test_link_to_the_file_stays_a_link(run: Run, tmp_path: Path) -> None:
    """The file behind it is replaced, as secrets that are mounted under another name need it."""
    (tmp_path / "real").mkdir()
    file = tmp_path / "tokens"
    file.symlink_to(tmp_path / "real" / "tokens")
    told = added(run, file)
    assert file.is_symlink()
    assert lets_in(tmp_path / "real" / "tokens", told["token"])
