"""`cmdlog stubs` writes a module from an application or a server, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.cli.app import make_program
from cmdlog.cli.cli_errors import CodeMissing, CommandFailed
from tests.client.scripted import ScriptedServer, Step, http


def test_a_module_is_written_from_an_application(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file compiles, names the database's classes, and the command says what it wrote."""
    path = tmp_path / "bank_client.py"
    make_program()(["stubs", "procedures.samples.bank:db", "--out", str(path)], standalone_mode=False)
    compile(path.read_text(), str(path), "exec")
    assert "class BankClient:" in path.read_text()
    assert str(path) in capsys.readouterr().out


def test_a_module_is_printed_from_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    """An address asks the server, whose procedures are what it serves."""
    entry = b'{"name":"put","partition_by":"item","read_only":false,"parameters":{"properties":{"item":{"type":"integer"}}},'
    answer = http(200, b'{"procedures":[' + entry + b'"result":{"type":"null"},"description":""}]}')
    with ScriptedServer([Step("body read", reply=answer)]) as server:
        make_program()(["stubs", server.url, "--name", "Shop"], standalone_mode=False)
    printed = capsys.readouterr().out
    compile(printed, "stubs.py", "exec")
    assert "class ShopClient:" in printed
    assert "def put(" in printed


def test_an_application_that_is_not_there_is_named() -> None:
    """The error is that of every command that takes an application."""
    with pytest.raises(CodeMissing, match="no_such_shop"):
        make_program()(["stubs", "no_such_shop:db"], standalone_mode=False)


@pytest.mark.parametrize("name", ["Async", "my shop", "2nd", "_Shop"])
def test_a_name_that_gives_no_classes_is_refused(name: str) -> None:
    """`AsyncClient` would hide the client that it calls; the error says which option to change."""
    with pytest.raises(CommandFailed, match=f"{name}Client") as raised:
        make_program()(["stubs", "procedures.samples.bank:db", "--name", name], standalone_mode=False)
    assert "--name" in raised.value.hint
