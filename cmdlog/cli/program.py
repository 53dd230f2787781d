"""The program: which commands there are, and the one place where an error becomes a message and an exit code.

A command is a module of this package with a function `register(program)`. To add one, add its name to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any, Final

import typer

from cmdlog.cli import brokenoff
from cmdlog.cli.brokenoff import heeding_signals
from cmdlog.cli.failure import BROKEN_OFF, USAGE, Failure, explain
from cmdlog.cli.output import JsonFlag, out

COMMANDS: Final = (
    "serve",
    "call",
    "status",
    "recover",
    "fork",
    "diff",
    "log",
    "snapshot",
    "archive",
    "drill",
    "spark",
    "tokens",
    "check",
    "demo",
    "version",
)
"""Modules of this package, in the order of `cmdlog --help`."""

HELP: Final = """Durable stored procedures in Python: every acknowledged call survives.

[bold]First steps[/bold]

  cmdlog serve procedures.samples.bank:db --data ./bank
  cmdlog call                      list the procedures
  cmdlog status

[bold]Exit codes[/bold]

  0 done, 1 refused, 2 usage, 10 corrupt, 11 foreign or newer format,
  12 locked by another process, 13 code missing or forged, 14 disk full,
  15 write or fsync failed, 16 divergence, 17 completeness not proved,
  130 interrupted by Ctrl-C, 143 terminated by SIGTERM
"""


def make_program() -> typer.Typer:
    """The program with all its commands."""
    program = typer.Typer(
        name="cmdlog",
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,  # a defect shows Python's own traceback, without the values of variables
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @program.callback()
    def everywhere(json: JsonFlag = False) -> None:
        """Options of every command."""

    for name in COMMANDS:
        importlib.import_module(f"cmdlog.cli.{name}").register(program)
    return program


def run() -> None:
    """Runs the command line and ends the process."""
    with heeding_signals():
        sys.exit(_exit_code())


def _exit_code() -> int:
    """Of the command that the arguments name."""
    try:
        code: int = make_program()(standalone_mode=False) or 0
        if code == BROKEN_OFF:  # what a signal has become on its way through Typer
            return _fail(brokenoff.failure())
    except (KeyboardInterrupt, typer.Abort):
        return _fail(brokenoff.failure())
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 0
    except Exception as error:
        if hasattr(error, "format_message"):  # of the arguments, in Typer's words
            return _misused(error)
        failure = explain(error)
        if failure is None:
            raise
        if failure.exit_code == BROKEN_OFF:
            failure = replace(failure, exit_code=brokenoff.exit_code())
        return _fail(failure)
    return code


def _fail(failure: Failure) -> int:
    out.failure(failure)
    return failure.exit_code


def _misused(error: Any) -> int:
    """Arguments that cannot be: told as every failure with `--json`, which need not have been read yet; else with the usage."""
    if not out.json and "--json" not in sys.argv[1:]:
        from typer.rich_utils import rich_format_error  # 40 ms that only who needs it waits for

        rich_format_error(error)
        return int(error.exit_code)
    out.json = True
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "cmdlog"
    message = "a command is missing" if type(error).__name__ == "NoArgsIsHelpError" else error.format_message()
    return _fail(Failure("UsageError", message, f"see `{path} --help`", USAGE))
