"""No option and no argument takes an empty value, of whatever command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cmdlog.cli.app import command_parser, make_program, refuse_empty_values, takes_path
from cmdlog.cli.cli_errors import USAGE
from tests.commands import Command


def parameters(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Every parameter that takes a value, with its command and the words that lead there."""
    for parameter in command.params:
        if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False):
            yield path, command, parameter
    for name, below in getattr(command, "commands", {}).items():
        yield from parameters(below, (*path, name))


def test_every_parameter_of_every_command_refuses_an_empty_value() -> None:
    """Those that exist, found by walking the commands: a new one is among them."""
    program = typer.main.get_command(make_program())
    refuse_empty_values(program)
    found = list(parameters(program))
    assert len(found) > 200
    for path, command, parameter in found:
        context = command.make_context(" ".join(path), [], resilient_parsing=True)
        wants_several = parameter.nargs != 1 or getattr(parameter, "multiple", False)
        for empty in ("", " "):
            with pytest.raises(typer.BadParameter, match="empty"):
                parameter.consume_value(context, {parameter.name: ["some", empty] if wants_several else empty})


@pytest.mark.parametrize(
    "arguments",
    [
        ("recover", "data", "--to", "out", "--until", ""),
        ("recover", "data", "--to", ""),
        ("recover", ""),
        ("log", "history", "data", "--until", ""),
        ("log", "history", "data", "--from", " "),
        ("drill", ""),
        ("serve", "shop:db", "--data", ""),
        ("serve", "shop:db", "--token-file", ""),
        ("serve", ""),
    ],
    ids=" ".join,
)
def test_empty_value_is_wrong_usage(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """The command does nothing, and the error names the option or argument."""
    monkeypatch.chdir(tmp_path)
    code, refused = command(*arguments, "--json")
    assert code == USAGE
    assert "empty" in refused["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_empty_variable_of_a_path_is_refused_unless_the_option_is_given(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder by default is not what was meant; other variables that are empty are not set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CMDLOG_DATA", "")
    code, refused = command("serve", "shop:db", "--json")
    assert (code, "CMDLOG_DATA is empty" in refused["error"]["message"]) == (USAGE, True)
    code, refused = command("serve", "no_such_module:db", "--data", "here", "--json")
    assert "empty" not in refused["error"]["message"]
    paths = {parameter.envvar for _, _, parameter in parameters(command_parser("")) if parameter.envvar and takes_path(parameter)}
    assert paths >= {"CMDLOG_DATA", "CMDLOG_CONFIG"}
