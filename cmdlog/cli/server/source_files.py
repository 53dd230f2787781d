"""`python -m … cmdlog.cli.server.source_files APP`: the folders of the application's modules, as one line of JSON.

It runs in a process of its own, so that the one that watches never holds a module of the application. Where the program cannot be
imported, the folders are those of what was imported before, and that of a file with a syntax error: one of them gets the repair.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.load_app import load_application
from cmdlog.whole_line_stdout import answer
from procedures import ProceduresError
from procedures.code.bundle import capture_bundle
from procedures.source.own_modules import FRAMEWORK, SAMPLES


def find_folders(app: str) -> list[str]:
    """Folders with Python files of the application, the current one first."""
    try:
        files = [_file_of(sys.modules[name]) for name in capture_bundle(load_application(app), app).modules]
    except (CommandFailed, ProceduresError) as error:
        files = [*map(_file_of, _own_modules()), *_syntax_error_files(error)]
    folders = [os.getcwd(), *(os.path.dirname(os.path.abspath(file)) for file in files if file)]
    return list(dict.fromkeys(folders))


def _file_of(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


def _own_modules() -> Iterable[Any]:
    """What is loaded and neither installed nor ours."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for name, module in sorted(sys.modules.items()):
        ours = name.partition(".")[0] in FRAMEWORK and not name.startswith(SAMPLES)
        if not ours and (file := _file_of(module)):
            path = Path(file).resolve()
            if not any(path.is_relative_to(folder) for folder in installed):
                yield module


def _syntax_error_files(error: BaseException) -> Iterable[str]:
    cause = error.__cause__
    if isinstance(cause, SyntaxError) and cause.filename:
        yield cause.filename


def main() -> int:
    """Entry point of the process."""
    answer(orjson.dumps({"folders": find_folders(sys.argv[1])}, option=orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
