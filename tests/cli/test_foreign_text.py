"""Whatever a caller, a server or a file says, a command's output holds nothing that a terminal obeys, and no line of theirs."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
import typer.main
from rich.console import Group
from rich.text import Text

import cmdlog
from cmdlog.cli import output
from cmdlog.cli.app import make_program
from cmdlog.cli.cluster.cluster_health import judge_cluster
from cmdlog.cli.cluster.cluster_table import cluster_table
from cmdlog.cli.output import make_console, visible, visible_json, visible_lines, visible_values
from cmdlog.cli.server.status import render
from tests.api import every_type
from tests.commands import Command

ROOT = Path(__file__).resolve().parents[2]
EVIL: Final = "\x1b]0;owned\x07\x1b[2J\r\nFORGED\u202e\x9b2J\x7f\u2028[red]x[/red]\ttab\b"
WRITERS: Final = {
    "cmdlog/cli/output.py": "it is the mechanism",
    "cmdlog/cli/__init__.py": "runs before anything of ours is imported, and prints its own words",
    "cmdlog/cli/server/settings_table.py": "writes a document",
}


def test_foreign_text_is_shown_as_its_escapes() -> None:
    """On one line, or under a margin; letters and spaces of all languages are left, and JSON keeps its value."""
    assert visible("é 漢 ب \u3000x") == "é 漢 ب \u3000x"
    assert visible("a\x1b[1m\n\u202e\ud800\U000e0001") == r"a\x1b[1m\n\u202e\ud800\U000e0001"
    assert visible_lines("a\nb\r", "  ") == "a\n  b\\r"
    assert visible_values({"a\n": ["\x07", 1, None]}) == {r"a\n": [r"\x07", 1, None]}
    value = {"text": EVIL, "far": "\U000e0001", "wide": "漢 "}
    shown = visible_json(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    assert json.loads(shown) == value
    assert_harmless(shown)


def test_consoles_draw_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what nobody has looked at before; a text is no markup."""
    make_console().print(Group(Text(EVIL), "[red]y[/red]"))
    printed = capsys.readouterr().out
    assert_harmless(printed.replace("FORGED", ""))
    assert "[red]y[/red]" in printed


def assert_harmless(printed: str) -> None:
    """No control character but the ends of our lines, and no line that begins with theirs."""
    assert sorted({one for one in printed if not one.isprintable() and one not in "\n\u3000"}) == []
    assert [line for line in printed.splitlines() if line.removeprefix("│ ").startswith("FORGED")] == []


def test_no_other_module_writes_to_a_terminal() -> None:
    """Output and consoles come from one module, so that nobody has to think of it."""
    found = []
    for path in sorted((ROOT / "cmdlog").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in WRITERS or not name.startswith(("cmdlog/cli/", "cmdlog/deploy/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in {"Console", "print", "typer.echo", "sys.stdout.write", "sys.stderr.write", "typer.secho", "rich.print"}:
                found.append(f"{name}:{node.lineno} {called}")  # type: ignore[attr-defined] # of a call
    assert found == [], "use `out` or `make_console` of cmdlog.cli.output"


def mangled(value: Any) -> Any:
    """The same JSON with something evil at the end of every text."""
    if isinstance(value, dict):
        return {name: mangled(inner) for name, inner in value.items()}
    return [mangled(inner) for inner in value] if isinstance(value, list) else value + EVIL if isinstance(value, str) else value


class HostileServer:
    """Answers every request with the value, or with a problem."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.partition("?")[0]
                known = path in outer.answers
                problem = dict.fromkeys(("type", "title", "code", "detail", "hint", "error", "procedure", "file"), EVIL)
                body = orjson.dumps(outer.answers[path] if known else {**problem, "status": 409})
                self.send_response(200 if known else 409)
                self.send_header("Content-Type", "application/json" if known else "application/problem+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = do_PUT = _answer

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the standard library
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        """Ends it."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    """A server that answers."""
    server = HostileServer()
    yield server
    server.close()


STATUS: Final = {
    "node": "n", "ready": False, "error": "e", "directory": "d", "uptime_s": 5.0, "durability": "sync",
    "predicted_recovery_s": "x", "inflight_calls": "y", "sessions": "z", "token_file": {"problem": "t"}, "snapshot_error": "s",
    "log": {"error": "l", "fill": 0.5, "held_by": {"anchor": "a"}, "segments": {"used": "1", "total": "2"}},
    "stalled": [{"message": "m"}], "failure_set": {"nodes": ["1"], "problem": "p"},
    "cluster": {"node": "1", "leader": "2", "state": "running", "standing": "leading", "members": []},
    "archive": {"problem": "p", "window_s": 5.0, "oldest_txn": "1", "oldest_time": "o"},
    "scrub": {"every_s": 5.0, "problem": "p", "findings": [{"path": "p", "what": "w", "repair": "r", "offset": "3"}]},
    "errors": [{"time": 5.0, "code": "c", "procedure": "p", "file": "f", "line": "3", "request_id": "r", "text": "t"}],
    "partitions": {f"0{EVIL}": {"state": "halted", "committed": "7", f"mark{EVIL}": "4"}},
}  # fmt: skip
NAMED: Final = {"type": "object", "properties": {"n": {"type": "integer", "description": EVIL}}}


def test_status_shows_hostile_values(capsys: pytest.CaptureFixture[str]) -> None:
    """Each part of it, as `status` and `--watch` draw it."""
    output.Output().renderable(render(mangled(STATUS)))
    printed = capsys.readouterr().out
    assert printed.count("FORGED") > 30
    assert_harmless(printed)


def test_cluster_status_shows_hostile_values(capsys: pytest.CaptureFixture[str]) -> None:
    """A node that answers with anything."""
    nodes: list[dict[str, Any]] = [{"node": 1, "url": EVIL, "state": EVIL, "error": EVIL}]
    nodes += [{"node": None, "url": "u", "state": "unreachable" + EVIL}]
    output.Output().renderable(cluster_table(judge_cluster(nodes), nodes))
    printed = capsys.readouterr().out
    assert "FORGED" in printed
    assert_harmless(printed)


FORMS: Final[tuple[Any, ...]] = (
    {},
    {"cluster": 5},
    {"cluster": {"members": [EVIL]}, "log": [EVIL], "archive": EVIL},
    {"procedures": [EVIL]},
)
OF_PROCEDURES: Final[tuple[dict[str, Any], ...]] = (
    {"description": 5},
    {"parameters": {"properties": {"n": EVIL}}},
    {"parameters": {"properties": {"n": {"anyOf": 5}}}},
    {"parameters": {"properties": {"n": {"enum": 5}}}, "result": EVIL},
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["call"],
        ["call", "echo", "n=x"],
        ["stubs", "URL"],
        ["status"],
        ["cluster", "status"],
        ["deploy", "--rollback"],
        ["snapshot", "take"],
    ],
)
def test_an_answer_in_an_unknown_form_is_refused(hostile: HostileServer, command: Command, arguments: list[str]) -> None:
    """It ends no command with a traceback, which would show what the server says as it is."""
    entry: dict[str, Any] = {"name": "echo", "parameters": {"properties": {"n": {}}}, "result": {}, "partition_by": None}
    for form in [*FORMS, *({"procedures": [{**entry, **wrong}]} for wrong in OF_PROCEDURES)]:
        hostile.answers = dict.fromkeys(("/v1/procedures", "/v1/status", "/v1/deploy", "/v1/snapshot"), form)
        given = [hostile.url if one == "URL" else one for one in arguments]
        code, printed = command.text(*given, *([] if "URL" in arguments else ["--url", hostile.url]))
        assert code in {0, 1, 2, 18, 19}, printed
        assert_harmless(printed)


def test_wrong_usage_shows_hostile_words(command: Command) -> None:
    """Words of the command line, which a script may have from elsewhere."""
    for arguments in (["version", EVIL], [EVIL], ["status", f"--{EVIL}"], ["log", "dump", "x", "--kind", EVIL]):
        code, printed = command.text(*arguments)
        assert code == 2
        assert_harmless(printed)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node whose rows, parameters and failures hold hostile text, beside files with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    with cmdlog.open(folder / "data", every_type.db, partitions=2, segments=4, segment_bytes=4 << 20) as node:
        for item in range(4):
            node.call("put", item=item, name=EVIL)
    for place in ("snapshots", "quarantine", "archive"):
        (folder / "data" / place).mkdir(exist_ok=True)
        (folder / "data" / place / EVIL.replace("/", "_")).write_text(EVIL)
    (folder / "tokens").write_text(f"# {EVIL}\n" + "x" * 20)
    (folder / "strange").mkdir()
    (folder / "strange" / EVIL.replace("/", "_")).write_text("")
    return folder


APP: Final = "tests.api.every_type:db"
ARGUMENTS: Final[dict[str, list[str]]] = {
    "call": ["echo", "n=1", "--url", "URL"],
    "stubs": ["URL"],
    "deploy": [APP, "--url", "URL"],
    "migrate": [APP, "--data", "DATA", "--plan"],
    "status": ["--url", "URL"],
    "recover": ["DATA", "--to", "NEW"],
    "fork": ["DATA", "--at", "0", "--app", APP, "--to", "NEW"],
    "diff": ["DATA", "OTHER"],
    "adopt": ["STRANGE"],
    "drill": ["STRANGE"],
    "files": ["cmdlog.toml"],
    "check": [APP],
    "version": [],
    "cluster init": [APP, "--member", f"1={EVIL}"],
    "cluster status": ["--url", "URL"],
    "cluster join": ["2", "--cluster", "FILE", "--peer", "127.0.0.1:1", "--client", "http://127.0.0.1:2", "--url", "URL"],
    "cluster quarantine list": ["DATA"],
    "cluster quarantine remove": ["DATA", "--name", EVIL, "--yes"],
    "log inspect": ["DATA"],
    "log dump": ["DATA"],
    "log history": ["DATA"],
    "log verify": ["DATA"],
    "snapshot list": ["DATA"],
    "snapshot verify": ["DATA"],
    "snapshot points": ["DATA"],
    "snapshot take": ["--url", "URL"],
    "snapshot export": ["DATA", "--to", "NEW"],
    "archive list": ["DATA"],
    "archive verify": ["DATA"],
    "archive prune": ["DATA", "--older-than", "1d"],
    "token add": ["FILE", "--name", "ci", "--role", "read"],
    "token list": ["TOKENS"],
    "token remove": ["TOKENS", "--name", "default"],
    **{
        f"cluster {name}": ["2", "--url", "URL", "--yes"]
        for name in ("add", "remove", "replace", "retire", "transfer", "cancel-copy")
    },
    "cluster move-replica": ["1", "--to", "2", "--url", "URL", "--yes"],
    "cluster unsafe-recover": ["1", "--url", "URL", "--yes"],
}
SILENT: Final = {
    "serve": "prints its own words, and its log has a test of its own",
    "demo": "asks a server of its own",
    "cluster demo": "asks servers of its own",
    "spark rebuild": "runs Spark, which writes to the terminal itself",
    "spark backfill": "the same",
    "spark demo": "the same",
    "spark package": "prints a path of ours",
}


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the program, by its words."""
    for name, inner in getattr(found, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(found, "commands"):
        yield " ".join(path)


@pytest.mark.slow
def test_every_command_is_walked() -> None:
    """A new one gets its row here."""
    assert sorted(commands(typer.main.get_command(make_program("")))) == sorted([*ARGUMENTS, *SILENT])


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False], ids=["answers", "problem"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_command_prints_what_a_terminal_obeys(
    name: str, hostile: HostileServer, directory: Path, tmp_path: Path, command: Command, *, answers: bool
) -> None:
    """Of a server, of a log, of names of files, of its arguments; for people and as JSON."""
    if answers:
        alone = {part: value for part, value in mangled(STATUS).items() if part != "cluster"}
        entry = {
            "name": "echo",
            "description": EVIL,
            "parameters": NAMED,
            "result": NAMED,
            "read_only": False,
            "partition_by": EVIL,
        }
        hostile.answers = {
            "/v1/status": alone, "/v1/procedures": {"procedures": [entry]},
            "/v1/procedures/echo": {"result": {EVIL: EVIL}, "txn_id": "1024", "partition": 0},
            "/v1/snapshots": mangled({"snapshots": [{"partition": "0", "snapshot": "s"}]}),
            "/v1/deploy": {
                **mangled({"version": "3", "pauses": "p", "former_cannot_run": "f", "migrations": ["m"]}),
                "changed": True, "pause_ms": 1.0, "partitions": {}, "steps": {EVIL: [[EVIL, EVIL, EVIL, 1.0]]},
            },
        }  # fmt: skip
    places = {
        "URL": hostile.url, "DATA": directory / "data", "OTHER": directory / "data", "STRANGE": directory / "strange",
        "TOKENS": directory / "tokens", "NEW": tmp_path / "new", "FILE": tmp_path / "file",
    }  # fmt: skip
    arguments = [str(places.get(one, one)) for one in ARGUMENTS[name]]
    for options in ([], ["--json"]):
        _, printed = command.text(*name.split(" "), *arguments, *options)
        assert printed
        assert_harmless(printed)
