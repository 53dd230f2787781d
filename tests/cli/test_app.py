"""The program as a user types it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cmdlog.cli.app import COMMANDS, make_program
from cmdlog.cli.version import version_of
from cmdlog.node.settings import TABLE
from procedures.native import accelerator
from tests.spark.reading import made
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow  # each test starts an interpreter


def cmdlog(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the program to its end."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
    return subprocess.run(
        [sys.executable, "-m", "cmdlog.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=cwd,
        env={**known, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "COLUMNS": "200", "TERM": "dumb", **environ},
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_that_of_its_module(command: str) -> None:
    """A command line that begins with a command loads its module alone."""
    assert list(typer.main.get_command(make_program(command)).commands) == [command]  # type: ignore[attr-defined]


def test_help_of_serve_shows_every_setting_with_its_reason() -> None:
    """No setting is hidden: the help has each option and why it is as it is."""
    shown = cmdlog("serve", "--help").stdout
    flat = " ".join(shown.replace("│", " ").split())
    for setting in TABLE.values():
        assert "--" + setting.name.replace("_", "-") in flat
        assert setting.reason.split(":")[0][:30].casefold() in flat.casefold()


@pytest.mark.parametrize("command", ["serve procedures.samples.bank:db --data {} --sites 1 --json --port x", "status --url {}"])
def test_options_are_read_without_pydantic(command: str, tmp_path: Path) -> None:
    """Texts, paths and flags need none of it, and it takes longer to load than most commands; a number that is none does."""
    program = "import sys; from cmdlog.cli import main\ntry: main()\nexcept SystemExit: print('pydantic' in sys.modules)"
    environ = {**os.environ, "CMDLOG_URL": "http://127.0.0.1:1"}
    words = command.format(tmp_path).split()
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=environ, check=False)
    assert done.stdout.endswith("False\n")


def test_version_is_an_option_too() -> None:
    """What every program answers; as JSON wherever that option stands."""
    assert cmdlog("--version").stdout == f"cmdlog {version_of('cmdlog')}\n"
    for arguments in (("--json", "--version"), ("--version", "--json")):
        assert json.loads(cmdlog(*arguments).stdout) == {"cmdlog": version_of("cmdlog")}


def test_version_is_machine_readable() -> None:
    """`--json` prints one JSON value on standard output and nothing else."""
    assert json.loads(cmdlog("version", "--json").stdout)["python"].startswith("3.")
    assert json.loads(cmdlog("--json", "version").stdout)["sqlite"]
    built = "none" if accelerator is None else "engine, gate, log"
    assert json.loads(cmdlog("--json", "version").stdout)["native"] == built


@pytest.mark.parametrize(
    ("arguments", "environ", "exit_code", "says"),
    [
        (["serve", "no_such_module:db"], {}, 13, "there is no module no_such_module"),
        (["serve", "os:path"], {}, 13, "not a Database"),
        (["serve", "os:path", "--partitions", "many"], {}, 2, "--partitions"),
        (["serve", "os:path", "--log-threads", "0"], {}, 2, "--log-threads: 0 is below the minimum of 1"),
        (["serve", "os:path"], {"CMDLOG_PARTITION": "2"}, 2, "did you mean CMDLOG_PARTITIONS?"),
        (["serve", "os:path", "--config", "none.toml"], {}, 2, "none.toml"),
        (["serve", "os:path", "--no-such-option"], {}, 2, "--no-such-option"),
        (["serve", "shop"], {}, 2, "module:attribute"),
        (["serve", "procedures.samples.bank:db", "--data", "no/such/folder"], {}, 1, "there is no folder"),
        (["serve"], {}, 2, "APP"),
        (["no-such-command"], {}, 2, "no-such-command"),
        (["status", "--url", "nonsense"], {}, 2, "not a server address"),
        (["recover", "d", "--until", "garbage", "--to", "x"], {}, 2, "neither a transaction id nor a time"),
    ],
)
def test_mistake_ends_with_its_code_and_a_sentence(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], exit_code: int, says: str
) -> None:
    """Exit code, message, no traceback, nothing on standard output, nothing on disk."""
    done = cmdlog(*arguments, cwd=tmp_path, **environ)
    assert done.returncode == exit_code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_mistake_as_json() -> None:
    """With `--json` a failure is a value too."""
    error = json.loads(cmdlog("serve", "no_such_module:db", "--json").stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("CodeMissing", 13)


def test_absent_server_is_named() -> None:
    """`status` without a server says where it looked and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = cmdlog("status", "--url", f"http://127.0.0.1:{port}", "--timeout", "0.5")
    assert done.returncode == 1
    assert f"http://127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["log", "history", "{node}"], 1),
        (["log", "dump", "{node}"], 1),
        (["log", "inspect", "{node}"], 0),
        (["serve", "--help"], 0),
    ],
)
def test_reader_that_goes_away_ends_the_command(tmp_path: Path, arguments: list[str], lines: int) -> None:
    """`… | head -1`: no word about it, and the exit code says that the end was not reached; where it was, all is well."""
    node = made(tmp_path, 40).directory
    with subprocess.Popen(
        [sys.executable, "-m", "cmdlog.cli", *(part.format(node=node) for part in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for _ in range(lines):
            running.stdout.readline()
        running.stdout.close()
        told = running.stderr.read().decode()
    assert told == ""
    assert running.returncode == 141 or (lines == 1 and running.returncode == 0)


def test_reader_of_an_error_that_goes_away_ends_the_command() -> None:
    """An error that nobody hears is no traceback either."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "cmdlog.cli", "log", "history", "/no/such/folder"],
        stdout=subprocess.PIPE,
        stderr=writing,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    os.close(writing)
    assert (ended.returncode, ended.stdout) == (141, b"")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """The program with streams as a shell redirects them."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "CMDLOG": f"{sys.executable} -m cmdlog.cli"}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=environ)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
@pytest.mark.parametrize("json_too", ["", "--json"])
def test_output_that_finds_no_room_is_an_error(json_too: str) -> None:
    """`… > file` on a full volume: a sentence on standard error, and the exit code of a full disk."""
    done = shell(f"$CMDLOG version {json_too} > /dev/full")
    assert done.returncode == 14
    assert done.stderr.startswith("error: the output cannot be written: No space left on device\n")
    assert "Traceback" not in done.stderr


def test_closed_streams_are_no_files(tmp_path: Path) -> None:
    """`… >&- 2>&-`: the command does its work, and no file that it opens gets what is printed."""
    done = shell(f"$CMDLOG token add {tmp_path}/tokens --name web --role read >&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len((tmp_path / "tokens").read_text().splitlines()) == 2  # a comment, and the token's hash
