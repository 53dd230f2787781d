"""The program: which commands there are, and the one place where an error becomes a message and an exit code.

A command is a module of this package with a function `register(program)`. To add one, add it to `COMMANDS`. A command line that
begins with a command loads that one alone: all of them take longer to import than most take to run.
"""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TextIO, get_args

import typer

from cmdlog.cli import signals
from cmdlog.cli.cli_errors import BROKEN_OFF, DISK_FULL_CODE, USAGE, WRITE_FAILED_CODE, ShownFailure, explain
from cmdlog.cli.output import JsonFlag, out, visible_lines
from cmdlog.cli.signals import sigterm_as_interrupt
from cmdlog.cli.version import VersionFlag
from cmdlog.wal.os_errors import NO_ROOM
from cmdlog.whole_line_stdout import keep_lines_whole

COMMANDS: Final = {
    "serve": "server.serve",
    "call": "server.call",
    "stubs": "server.stubs",
    "deploy": "server.deploy",
    "migrate": "directory.migrate",
    "status": "server.status",
    "cluster": "cluster.cluster",
    "recover": "directory.recover",
    "fork": "directory.fork",
    "diff": "directory.diff",
    "log": "directory.log",
    "snapshot": "directory.snapshot",
    "archive": "directory.archive",
    "adopt": "directory.adopt",
    "drill": "directory.drill",
    "files": "files",
    "spark": "spark",
    "token": "server.tokens",
    "check": "check",
    "demo": "demo.demo",
    "version": "version",
}
"""Commands, in the order of `cmdlog --help`, and their modules of this package."""

STDERR: Final = 2  # its number
GIVEN: Final = ("COMMANDLINE", "ENVIRONMENT")  # sources of a value
READER_GONE: Final = 141  # 128 and the number of SIGPIPE, as of any program in a pipe

HELP: Final = """Durable stored procedures in Python: every acknowledged call survives.

[bold]First steps[/bold]

  cmdlog serve procedures.samples.bank:db --data ./bank
  cmdlog call                      list the procedures
  cmdlog status

[bold]Exit codes[/bold]

  0 done, 1 refused, 2 usage, 10 corrupt, 11 foreign or newer format,
  12 locked by another process, 13 code missing or forged, 14 disk full,
  15 write or fsync failed, 16 divergence, 17 completeness not proved,
  130 interrupted by Ctrl-C, 143 terminated by SIGTERM,
  141 the reader of the output closed the pipe
"""


def make_program(only: str = "") -> typer.Typer:
    """The program with all its commands, or with the one."""
    program = typer.Typer(
        name="cmdlog",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,  # a defect shows Python's own traceback, without the values of variables
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @program.callback()
    def everywhere(json: JsonFlag = False, version: VersionFlag = False) -> None:
        """Options of every command."""

    for module in [COMMANDS[only]] if only else COMMANDS.values():
        importlib.import_module(f"cmdlog.cli.{module}").register(program)
    return program


@cache
def command_parser(first: str) -> Any:
    """What parses a command line with this first argument and runs the command; made once in a process."""
    command = typer.main.get_command(make_program(first if first in COMMANDS else ""))
    refuse_empty_values(command)
    return command


def refuse_empty_values(command: Any) -> None:
    """From now on the command, and those below it, refuse empty values as wrong usage: `--until "$T"` where T is not set must not
    mean the newest state. Leaving an option out gives the default.

    An empty environment variable counts as unset, as in any shell; but one for a path is refused: it cannot mean the default
    folder.
    """
    for parameter in command.params:
        setattr(parameter, "consume_value", partial(_consume, parameter, parameter.consume_value))  # noqa: B010
    for below in getattr(command, "commands", {}).values():
        refuse_empty_values(below)


def _consume(parameter: Any, consume: Callable[[Any, Any], tuple[Any, Any]], context: Any, given: Any) -> tuple[Any, Any]:
    """In place of Typer's: the value and its source."""
    value, source = consume(context, given)
    if source is not None and source.name in GIVEN and any(map(_is_empty, value if isinstance(value, list | tuple) else [value])):
        raise typer.BadParameter("it is empty; leave it out for the default", ctx=context, param=parameter)
    variable = parameter.envvar
    is_default = source is None or source.name not in GIVEN
    if is_default and isinstance(variable, str) and takes_path(parameter) and _is_empty(os.environ.get(variable)):
        raise typer.BadParameter(f"{variable} is empty; unset it for the default", ctx=context, param=parameter)
    return value, source


class AppValues:
    """What Typer makes of the values of a parameter, without pydantic where they are what they should be, a text for a path, or
    left out. It takes longer to load than most commands take to run.
    """

    def __init__(self, described: Any) -> None:
        self._described = described

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Reads a value, as Typer's `RuntimeParam` does."""
        kind = self._described.annotation
        if isinstance(kind, type) and param.nargs == 1 and not param.multiple:
            if value is None or isinstance(value, kind):
                return value
            if kind is Path and isinstance(value, str):
                return Path(value)
        return read_value(self._described).coerce(value, param=param, ctx=ctx)


read_value: Final[Any] = vars(typer.core).get("build_runtime_param")  # no public name
setattr(typer.core, "build_runtime_param", AppValues)  # noqa: B010


def takes_path(parameter: Any) -> bool:
    """Whether its value is the path of a file or a folder."""
    annotation = parameter.type_descriptor.annotation
    return Path in (annotation, *get_args(annotation))


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def run() -> None:
    """Runs the command line and ends the process."""
    with sigterm_as_interrupt():
        _open_closed_streams()
        keep_lines_whole()
        sys.exit(_exit_code_read())


def _open_closed_streams() -> None:
    """`… >&-`: the next file to be opened would get the stream's number, and what is printed there would go into the file."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- as long as the process


def _exit_code_read() -> int:
    """The command's exit code, or READER_GONE if the reader of its output closed the pipe (`… | head -1`)."""
    code = 0
    try:
        code = _exit_code()
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:  # Typer and rich make the one into the other; rich has closed the stream then
        if not _reader_gone() and not isinstance(end.__context__, BrokenPipeError):
            raise
        return READER_GONE
    except OSError as error:
        if not _drop_unwritable():
            raise
        return code or _fail_unwritten(error)  # whichever came first
    return code


def _drop_unwritable() -> bool:
    """Whether what was printed cannot be written (`… > file` on a full volume); it goes nowhere, instead of failing at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _send_nowhere(sys.stdout)
        return True
    return False


def _fail_unwritten(error: OSError) -> int:
    """The output is not whole: with `--json` it is the place for errors, and cannot take one."""
    out.json = False
    code = DISK_FULL_CODE if error.errno in NO_ROOM else WRITE_FAILED_CODE
    kind = "DiskFull" if code == DISK_FULL_CODE else "WriteFailed"
    message, hint = f"the output cannot be written: {error.strerror}", "free space where it goes, or send it elsewhere"
    return _fail(ShownFailure(kind, message, hint, code))


def _reader_gone() -> bool:
    """Whether a stream has lost its reader; what is still to be printed there goes nowhere, instead of failing at exit."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
    for stream in gone:
        _send_nowhere(stream)
    return bool(gone)


def _send_nowhere(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_broken(stream: TextIO) -> bool:
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _exit_code() -> int:
    """The exit code of the command that the arguments name."""
    out.json = False  # only the arguments decide, not those of an earlier command in the same process
    try:
        code: int = command_parser("".join(sys.argv[1:2]))(standalone_mode=False) or 0
        if code == BROKEN_OFF:  # what a signal has become on its way through Typer
            return _fail(signals.failure())
    except (KeyboardInterrupt, typer.Abort):
        return _fail(signals.failure())
    except Exception as error:
        if isinstance(error, BrokenPipeError) and (_is_broken(sys.stdout) or _is_broken(sys.stderr)):
            raise  # it is ours, and not a server's
        if isinstance(error, OSError) and _drop_unwritable():
            return _fail_unwritten(error)
        if hasattr(error, "format_message"):  # of the arguments, in Typer's words
            return _misused(error)
        failure = explain(error)
        if signals.caused_by_signal(error) and (failure is None or failure.exit_code != BROKEN_OFF):
            failure = signals.failure()
        if failure is None:
            raise
        if failure.exit_code == BROKEN_OFF:
            failure = replace(failure, exit_code=signals.exit_code())
        return _fail(failure)
    return code


def _fail(failure: ShownFailure) -> int:
    out.failure(failure)
    return failure.exit_code


def _misused(error: Any) -> int:
    """Invalid arguments: reported like every failure with `--json`, which need not have been read yet; else with the usage."""
    if not out.json and "--json" not in sys.argv[1:]:
        from typer.rich_utils import rich_format_error  # 40 ms that only who needs it waits for

        shown = visible_lines(error.format_message())
        error.format_message = lambda: shown
        rich_format_error(error)
        return int(error.exit_code)
    out.json = True
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "cmdlog"
    message = "a command is missing" if type(error).__name__ == "NoArgsIsHelpError" else error.format_message()
    return _fail(ShownFailure("UsageError", message, f"see `{path} --help`", USAGE))
