"""`cmdlog call` reads parameters by their types, repeats what was not answered, and says what is known."""

import json
import re
import shlex
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from cmdlog.cli.app import make_program
from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.directory.snapshot import take
from cmdlog.cli.output import out
from cmdlog.cli.server import server_options
from cmdlog.cli.server.call import call, complete_parameter, complete_procedure, read_params
from cmdlog.cli.server.deploy import deploy
from cmdlog.cli.server.server_options import patience
from cmdlog.cli.server.status import status
from cmdlog.client import Client
from cmdlog.errors import Unavailable
from tests.client.scripted import ScriptedServer, Step, http, problem

PROPERTIES: dict[str, Any] = {
    "count": {"type": "integer"},
    "name": {"type": "string"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "size": {"enum": ["small", 2]},
    "big": {"type": "boolean"},
}

PASSWORD = "secret"


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ([], {}),
        (["count=7"], {"count": 7}),
        (["name=7"], {"name": "7"}),
        (["name="], {"name": ""}),
        (["name=a=b"], {"name": "a=b"}),
        (["note=null"], {"note": None}),
        (["note=none"], {"note": "none"}),
        (['tags=["a", "b"]', "big=true"], {"tags": ["a", "b"], "big": True}),
        (["size=small"], {"size": "small"}),
        (["size=2"], {"size": 2}),
    ],
)
def test_value_is_read_by_its_type(given: list[str], params: dict[str, Any]) -> None:
    """Text is taken as it is, everything else as JSON."""
    assert read_params(given, PROPERTIES) == params


@pytest.mark.parametrize(
    "given", [["count"], ["count=seven"], ["cuont=7"], ["count=1", "count=2"], ["tags=[a]"], ["count=18446744073709551616"]]
)
def test_misfit_is_a_usage_error(given: list[str]) -> None:
    """A parameter that cannot be meant ends with exit code 2 before anything is sent."""
    with pytest.raises(CommandFailed) as refused:
        read_params(given, PROPERTIES)
    assert refused.value.exit_code == 2


CATALOG = {
    "procedures": [
        {
            "name": "bump",
            "parameters": {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
            "description": "The plain one.\nMore of it.",
        }
    ]
}
LISTED = Step(reply=http(200, CATALOG))


def test_call_is_repeated_until_it_is_answered(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost answer and a refusal cost nothing but time: one execution, the result on standard output."""
    script = [LISTED, Step(end="reset", reply=b""), Step("body read", reply=problem(503, "not_ready", "Retry-After: 0"))]
    with ScriptedServer(script) as server:
        call("bump", ["id=1"], url=server.url)
        assert capsys.readouterr().out == "1\n"
        assert server.executions == 1
        monkeypatch.setattr(out, "json", True)
        with ScriptedServer([LISTED]) as another:
            call("bump", ["id=1"], url=another.url, key="mine")
        assert json.loads(capsys.readouterr().out) == {"txn_id": "1", "partition": 0, "result": 1}
        assert another.requests[1].headers["idempotency-key"] == "mine"


def test_user_learns_that_it_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the address, until when and how long, off a terminal too; with `--json` as an object beside the results."""
    monkeypatch.setattr(server_options, "NOTICE_S", 0.1)

    def written() -> str:
        with socket.create_server(("127.0.0.1", 0)) as nobody, pytest.raises(CommandFailed):
            call(url=f"http://127.0.0.1:{nobody.getsockname()[1]}", timeout=0.4)
        printed, said = capsys.readouterr()
        assert printed == ""
        return said

    says = r"the request is sent, and http://127\.0\.0\.1:\d+ has not answered yet; "
    says += r"waiting for its answer until \d\d:\d\d:\d\d, 0\.4 s in all"
    assert re.fullmatch(rf"note: {says}\n", written())
    monkeypatch.setattr(out, "json", True)
    assert re.fullmatch(says, json.loads(written())["note"])


COMMANDS: dict[str, Callable[..., None]] = {
    "call": partial(call, "bump", ["id=1"]),
    "status": status,
    "snapshot take": partial(take, consistent=False),
    "deploy": partial(deploy, rollback=True),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_address_where_nobody_listens_is_given_up_soon(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the command's own patience: the error names the address, and how to start or name a server."""
    monkeypatch.setattr(server_options, "REFUSED_S", 0.2)
    monkeypatch.setattr(server_options, "NOTICE_S", 0.05)
    with pytest.raises(CommandFailed, match=r"^no answer from http://127\.0\.0\.1:9: nobody listens there") as refused:
        COMMANDS[command](url="http://127.0.0.1:9", timeout=600.0)
    assert refused.value.hint.startswith("start the server with `cmdlog serve APP`, or name its address by --url")
    why = r"no answer from http://127\.0\.0\.1:9 yet: nobody listens there \(connection refused\)"
    assert re.fullmatch(
        rf"(note: {why}; retrying until .*, 0\.2 s in all\n)?", capsys.readouterr().err
    )  # chance may end it before the note


def test_answer_in_time_is_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that answers within a second leaves standard error empty."""
    with ScriptedServer([LISTED]) as server:
        call("bump", ["id=1"], url=server.url)
    assert capsys.readouterr() == ("1\n", "")


def test_procedures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name, what there is."""
    with ScriptedServer([LISTED]) as server:
        call(url=server.url)
    shown = capsys.readouterr().out
    assert "bump" in shown
    assert "The plain one." in shown
    assert "More of it" not in shown


@pytest.mark.parametrize(
    ("reply", "exit_code", "says"),
    [
        (problem(409, "aborted", txn_id="7", abort_code="sold_out"), 1, "aborted: sold_out: aborted"),
        (problem(422, "invalid_parameters", problems=[]), 2, "invalid_parameters"),
        (problem(404, "unknown_procedure"), 2, "unknown_procedure"),
        (problem(401, "unauthenticated"), 1, "unauthenticated"),
        (problem(503, "log_full", "Retry-After: 60"), 1, "log_full"),
        (http(200, b"<html>", kind="text/html"), 1, "check that cmdlog is listening there"),
    ],
)
def test_refusal_has_its_exit_code(reply: bytes, exit_code: int, says: str) -> None:
    """2 where the command line is at fault, 1 otherwise, and the code in the message."""
    with ScriptedServer([LISTED, Step("body read", reply=reply)]) as server, pytest.raises(CommandFailed) as refused:
        call("bump", ["id=1"], url=server.url)
    assert refused.value.exit_code == exit_code
    assert says in str(refused.value)


@pytest.mark.slow
def test_doubt_names_the_key_that_dispels_it() -> None:
    """When nobody knows whether the call was executed, the hint is the command's own key: repeated under it, it tells."""
    lost = [Step(end="reset", reply=b"")] * 10_000
    with ScriptedServer([LISTED, *lost]) as server, pytest.raises(CommandFailed) as refused:
        call("bump", ["id=1"], url=server.url, timeout=3)
    assert "outcome_unknown" in str(refused.value)
    [key] = {request.headers["idempotency-key"] for request in server.requests if request.path.startswith("/v1/procedures/")}
    assert f"--key {key}" in refused.value.hint


def test_nodes_of_a_cluster_are_given_with_commas() -> None:
    """The next one is asked when one is gone; the error of all names each of them."""
    with ScriptedServer([LISTED]) as server:
        call("bump", ["id=1"], url=f"http://127.0.0.1:9, {server.url}", key="k")
        assert [request.headers.get("idempotency-key") for request in server.requests] == [None, "k"]
    with pytest.raises(CommandFailed, match=r"http://127\.0\.0\.1:9: .*; http://127\.0\.0\.2:9: ") as refused:
        call("bump", url="http://127.0.0.1:9,http://127.0.0.2:9", timeout=1.0)
    assert refused.value.exit_code == 1


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://", f"http://user:{PASSWORD}@127.0.0.1:1", "http://[::1"])
def test_address_that_is_none_is_a_usage_error(url: str) -> None:
    """It is said before anything is sent, and what may be a secret in it is not shown."""
    with pytest.raises(CommandFailed) as refused:
        call(url=url)
    assert refused.value.exit_code == 2
    assert "secret" not in str(refused.value)


def test_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file is the operator's to mend."""
    with pytest.raises(OSError, match="no-token"):
        call(url="http://127.0.0.1:9", token_file=tmp_path / "no-token")


def test_integer_beyond_64_bits_is_named_as_such() -> None:
    """It is not sent as the nearest float, which would be told to be no integer."""
    with pytest.raises(CommandFailed, match="an integer outside of"):
        read_params(["count=-9223372036854775809"], PROPERTIES)


def test_mistyped_name_gets_the_nearest_one() -> None:
    """Of a procedure and of a parameter, with all that there are."""
    with ScriptedServer([LISTED]) as server, pytest.raises(CommandFailed, match="there is no procedure bunp") as refused:
        call("bunp", url=server.url)
    assert refused.value.hint == "did you mean bump? there are bump"
    with pytest.raises(CommandFailed, match="there is no parameter cuont") as refused:
        read_params(["cuont=7"], PROPERTIES)
    assert refused.value.hint.startswith("did you mean count? there are count, ")
    with pytest.raises(CommandFailed, match="'7' is not of the form key=value") as refused:
        read_params(["7"], PROPERTIES)
    assert refused.value.hint.startswith("parameters: count, ")


def test_text_for_a_number_is_no_riddle_about_json() -> None:
    """The type that is wanted is named; text that looks like JSON is told where it is wrong."""
    with pytest.raises(CommandFailed, match=r"^count: 'seven' is not of type integer\n"):
        read_params(["count=seven"], PROPERTIES)
    with pytest.raises(CommandFailed, match=r"^tags: '\[a\]' is not JSON"):
        read_params(["tags=[a]"], PROPERTIES)


def test_parameter_of_any_type_says_how_a_text_is_written() -> None:
    """Its schema is empty, which names nothing; the hint can be pasted, whatever the text holds."""
    with pytest.raises(CommandFailed, match=r"^value: \"it's\" is not JSON") as refused:
        read_params(["value=it's"], {"value": {}})
    assert refused.value.hint.startswith("its type is any JSON; ")
    [pasted] = shlex.split(refused.value.hint.rpartition(": ")[2])
    assert read_params([pasted], {"value": {}}) == {"value": "it's"}


def test_empty_key_is_refused() -> None:
    """It comes from a variable that is not set; a call under a fresh key would run at every retry."""
    with pytest.raises(CommandFailed, match="--key is empty") as refused:
        call("bump", ["id=1"], url="http://127.0.0.1:1", key="")
    assert refused.value.exit_code == 2


def test_shell_completes_procedures_and_parameters() -> None:
    """From the server's catalog; a server that does not answer completes nothing."""
    context = typer.Context(typer.main.get_command(make_program()))
    with ScriptedServer([LISTED, LISTED, LISTED]) as server:
        context.params = {"url": server.url, "name": "bump", "params": []}
        assert complete_procedure(context, "bu") == ["bump"]
        assert complete_parameter(context, "") == ["id="]
        context.params["params"] = ["id=1"]
        assert complete_parameter(context, "") == []
    context.params = {"url": "no address"}
    assert complete_procedure(context, "") == []


class Elapsed:
    """A second that is over at once."""

    def __init__(self, interval_s: float, ring: Callable[[], object]) -> None:
        assert interval_s == 1.0
        self.start = ring

    def cancel(self) -> None:
        pass


SENT = "the request is sent, and http://here has not answered yet"


def test_command_that_waits_names_the_call_that_its_server_is_at(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's own sentence follows; one that does not say, or refuses to, adds nothing."""
    stalled = http(200, {"stalled": [{"message": "partition 1: reserve has been running for 1.2 s"}]})
    script = [Step(reply=http(200, {})), Step(reply=stalled), Step(reply=http(200, {})), Step(reply=problem(403, "forbidden"))]
    with ScriptedServer(script) as server, Client(server.url) as client:
        client.status()
        for last in ("note: partition 1: reserve has been running for 1.2 s\n", "", ""):
            with patience(client, "http://here", 30.0, timer=Elapsed):
                pass
            assert capsys.readouterr().err.partition("\n")[2] == last


def test_command_that_ends_asks_its_server_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    """The client may be closed when a second is over: that is no error of the command."""
    with ScriptedServer([Step(reply=http(200, {}))]) as server:
        with Client(server.url) as client:
            client.status()
        with patience(client, "http://here", 30.0, timer=Elapsed):
            pass
    assert capsys.readouterr().err.count("\n") == 1


def test_command_that_waits_says_what_for(capsys: pytest.CaptureFixture[str]) -> None:
    """For a connection, a retry, or the answer to a request that the server has: a long run is no lost server."""
    script = [Step(reply=problem(503, "log_full", "Retry-After: 60")), Step(reply=http(200, {}))]
    with ScriptedServer(script) as server, Client(server.url) as client:

        def said() -> str:
            with patience(client, "http://here", 30.0, doing="waiting for its snapshots", timer=Elapsed):
                pass
            note = re.fullmatch(r"note: (.*) until \d\d:\d\d:\d\d, 30 s in all\n", capsys.readouterr().err)
            assert note is not None
            return note[1]

        assert said() == "no connection to http://here yet; trying"
        with pytest.raises(Unavailable):
            client.take_snapshot(timeout_s=1.0)
        assert said() == "no answer from http://here yet: 503 log_full; retrying"
        client.status()
        assert said() == f"{SENT}; waiting for its snapshots"
