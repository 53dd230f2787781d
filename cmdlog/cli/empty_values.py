"""Empty values on the command line: `--until "$T"` where T is not set must not mean the newest state.

One rule: no option and no argument of any command takes an empty value; leaving the option out gives the default. An empty
environment variable counts as unset, as in any shell. An empty one for a path is refused: it cannot mean the default folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import typer

GIVEN: Final = ("COMMANDLINE", "ENVIRONMENT")


def refuse_empty_values(command: Any) -> None:
    """From now on the command, and those below it, refuse them as wrong usage."""
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


def takes_path(parameter: Any) -> bool:
    """Whether its value is the path of a file or a folder."""
    annotation = parameter.type_descriptor.annotation
    return Path in (annotation, *get_args(annotation))


def _is_empty(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()
