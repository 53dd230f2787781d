"""Finding the application: `module:attribute` of a `Database`, with the current directory importable."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cmdlog.cli.cli_errors import CodeMissing, CommandFailed
from cmdlog.hidden_packages import check_packages

if TYPE_CHECKING:
    from procedures import Database

AppArgument = Annotated[
    str, typer.Argument(metavar="APP", help="module:attribute of a Database, such as shop.procedures:db.", envvar="CMDLOG_APP")
]


def load_application(name: str) -> Database:
    """Imports the application. Raises: CommandFailed; CodeMissing; PackageHidden; DefinitionError of its own declarations."""
    from procedures import Database

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        hint = "for `db = Database(...)` in shop.py it is shop:db"
        raise CommandFailed(f"{name!r} is not of the form module:attribute", hint=hint, exit_code=2)
    folder = os.getcwd()
    check_packages([folder, *sys.path])
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _import(module_name, folder)
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            file = getattr(module, "__file__", None) or "in the interpreter"
            hint = "check the name after the colon"
            if module_name in sys.stdlib_module_names:
                hint = f"{module_name} is a module of Python's own ({file}): give yours another name"
            raise CodeMissing(f"module {module_name} has no {attribute}", hint=hint)
        value = getattr(value, part)
    if not isinstance(value, Database):
        raise CodeMissing(f"{name} is a {type(value).__name__}, not a Database", hint="name the object that `Database(...)` made")
    return value


def _import(module_name: str, folder: str) -> object:
    from procedures import ProceduresError

    try:
        return importlib.import_module(module_name)
    except ProceduresError:
        raise  # a table or procedure that cannot be replayed: its message shows what to write instead
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            hint = f"it was searched for in {folder} and among the installed packages"
            if module_name.endswith(".py"):
                hint = f"write the name of a module without .py: {module_name.removesuffix('.py').replace(os.sep, '.')}"
            raise CodeMissing(f"there is no module {error.name}", hint=hint) from None
        raise CodeMissing(f"{module_name} needs a module that is not installed: {error.name}", hint="install it") from error
    except SystemExit as error:
        hint = "put what runs the program below `if __name__ == '__main__':`"
        raise CodeMissing(f"{module_name} ends the program while it is imported: sys.exit({error.code})", hint=hint) from None
    except Exception as error:
        where = _last_line_of(error)
        raise CodeMissing(f"{module_name} cannot be imported: {type(error).__name__}: {error}", hint=where) from error


def _last_line_of(error: BaseException) -> str:
    frame = error.__traceback__
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno}" if frame else ""
