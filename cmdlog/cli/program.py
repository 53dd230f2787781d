"""The program: which commands there are, and the one place where an error becomes a message and an exit code.

A command is a module of this package with a function `register(program)`. To add one, add its name to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

import typer

from cmdlog.cli.failure import explain
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
  15 write or fsync failed, 16 divergence, 17 completeness not proved
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
    try:
        make_program()()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        out.failure(failure)
        sys.exit(failure.exit_code)
