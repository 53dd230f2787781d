"""`cmdlog call NAME key=value...`: one procedure call from the shell."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cmdlog.api.gate.strict_json import NotStrict, loads_strict
from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import (
    DEFAULT_URL,
    TIMEOUT_S,
    CaOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    patience,
    server,
    understood,
)

if TYPE_CHECKING:
    from cmdlog.client import Client


def complete_procedure(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the procedures of the server whose names begin so; none when it does not answer at once."""
    return [name for name in _catalog_for_shell(ctx) if name.startswith(incomplete)]


def complete_parameter(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the parameters of the procedure that are not given yet."""
    entry = _catalog_for_shell(ctx).get(ctx.params.get("name") or "", {"parameters": {"properties": {}}})
    given = {pair.partition("=")[0] for pair in ctx.params.get("params") or ()}
    return [f"{name}=" for name in entry["parameters"]["properties"] if name.startswith(incomplete) and name not in given]


def _catalog_for_shell(ctx: typer.Context) -> dict[str, Any]:
    url, token_file, ca_file = (ctx.params.get(name) for name in ("url", "token_file", "ca_file"))
    try:
        with server(url or DEFAULT_URL, token_file, COMPLETION_S, ca_file) as client:
            return _catalog(client)
    except Exception:  # noqa: BLE001 - whatever it is, it would be printed into the line that is being typed
        return {}


def _catalog(client: Client) -> dict[str, Any]:
    return {entry["name"]: entry for entry in client.procedures()}


COMPLETION_S: Final = 1.0  # the longest wait after Tab

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the procedure; without it, all are listed.", autocompletion=complete_procedure),
]
ParamsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Parameters.", autocompletion=complete_parameter)
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Idempotency key: a retry with the same key gets the first outcome and runs nothing."
    ),
]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("call")(call)


def call(
    name: NameArgument = "",
    params: ParamsArgument = None,
    *,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    json: JsonFlag = False,
) -> None:
    """Call a procedure of a running server and print its result.

    A value is read by the parameter's type: text as it is, everything else
    as JSON. A call that gets no answer is repeated under one idempotency key,
    so it is executed once.

    [bold]Examples[/bold]

      cmdlog call balance account_id=7
      cmdlog call transfer source=1 target=2 amount=50 --key order-1815
      cmdlog call rename id=7 name="Ada Lovelace" tags='["x", "y"]'
    """
    from cmdlog.client import NEW_KEY

    if key == "":
        raise CommandFailed(
            "--key is empty", hint="omit --key for a key of its own; is a variable of the shell unset?", exit_code=2
        )
    with server(url, token_file, timeout, ca_file) as client:
        with patience(client, url, timeout):
            catalog = _catalog(client)
        if not name:
            with understood(url):
                out.result(list(catalog.values()), lambda: _show_catalog(list(catalog.values())))
            return
        if name not in catalog:
            raise CommandFailed(f"there is no procedure {name}", hint=_known_names(name, catalog), exit_code=2)
        with understood(url):
            body = read_params(params or [], catalog[name]["parameters"]["properties"])
        with patience(client, url, timeout):
            result = client.invoke(name, body, idempotency_key=NEW_KEY if key is None else key)
    answer = {"txn_id": str(result.txn_id), "partition": result.partition, "result": result.value}
    out.result(answer, lambda: out.indented_json(result.value))


def read_params(given: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """`key=value` pairs as parameters, each by its schema. Raises: CommandFailed."""
    params: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            hint = f"parameters: {', '.join(properties) or 'none'}"
            raise CommandFailed(f"{pair!r} is not of the form key=value", hint=hint, exit_code=2)
        if name in params:
            raise CommandFailed(f"{name} is given twice", exit_code=2)
        if name not in properties:
            raise CommandFailed(f"there is no parameter {name}", hint=_known_names(name, properties), exit_code=2)
        params[name] = _value(name, text, properties[name])
    return params


def _value(name: str, text: str, schema: dict[str, Any]) -> Any:
    shapes = schema.get("anyOf", [schema])
    if any(shape.get("type") == "null" for shape in shapes) and text == "null":
        return None
    values = [value for shape in shapes for value in shape.get("enum", [])]
    if any(shape.get("type") == "string" for shape in shapes) or text in values:
        return text
    try:
        return loads_strict(text.encode())
    except NotStrict as error:
        kinds = " or ".join(str(shape["type"]) for shape in shapes if "type" in shape)
        problem = (
            f"{text!r} is not of type {kinds}" if kinds and len(text.split()) == 1 and text.isalnum() else f"{text!r} {error}"
        )
        raise CommandFailed(f"{name}: {problem}", hint=_type_of(name, text, schema), exit_code=2) from None


def _type_of(name: str, text: str, schema: dict[str, Any]) -> str:
    """The parameter's type. One without a type (`Any`) also takes texts, which only their quotes distinguish from JSON."""
    if schema:
        return f"its type is {orjson.dumps(schema).decode()}"
    quoted = shlex.quote(f"{name}={orjson.dumps(text).decode()}")
    return f"its type is any JSON; a text is written with its quotes, and those again for the shell: {quoted}"


def _known_names(wrong: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(wrong, names, n=1)
    there = f"there are {', '.join(names) or 'none'}"
    return f"did you mean {near[0]}? {there}" if near else there


def _show_catalog(catalog: list[dict[str, Any]]) -> None:
    rows = [
        (entry["name"], ", ".join(entry["parameters"]["properties"]), (entry.get("description") or "").partition("\n")[0])
        for entry in catalog
    ]
    out.table("Procedures", ("name", "parameters", "description"), rows)
