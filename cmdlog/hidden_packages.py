"""Whether a file of the user hides one of this program's packages, as a `procedures.py` beside a script does, or one of Python.

One rule: nothing is imported to find that out. Python takes the first package of a name that it finds on `sys.path`, and a
script's own folder comes first. What is found too late shows as a missing module somewhere inside this program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from cmdlog.operator_error import OperatorError

PACKAGES: Final = ("cmdlog", "procedures", "replay", "snapshot")
ROOT: Final = Path(__file__).resolve().parent.parent  # all of them lie side by side


class PackageHidden(OperatorError, ImportError):
    """The application has a module with the name of one of this program's packages."""

    exit_code = 13


def check_packages(path: Sequence[str] | None = None) -> None:
    """Looks along `path`, by default `sys.path`. Raises: PackageHidden, naming the file."""
    for name in PACKAGES:
        found = PathFinder.find_spec(name, list(sys.path if path is None else path))
        origin = found.origin if found is not None else None  # a folder without __init__.py hides nothing
        if origin is None or Path(origin).resolve().parent == ROOT / name:
            continue
        file = Path(origin).parent if Path(origin).name == "__init__.py" else Path(origin)
        raise PackageHidden(f"{file} hides cmdlog's own package `{name}`", hint=f"rename {file}, and what imports it")


def library_hint(path: Sequence[str] | None = None) -> str:
    """Names the files that hide a module of Python's own along `path`, by default `sys.path`; "" if there are none.

    Most do no harm, since nothing needs that module; so they are a hint where a process has failed, and no error.
    """
    library = os.path.dirname(os.__file__)
    found: list[str] = []
    for folder in sys.path if path is None else path:
        if folder == library:
            break
        try:
            names = sorted(os.listdir(folder or os.curdir))
        except OSError:
            continue  # a zip file, or a folder that is gone
        for name in names:
            module = name.removesuffix(".py")
            if module not in sys.stdlib_module_names:
                continue
            if module != name or os.path.exists(os.path.join(folder, name, "__init__.py")):
                found.append(os.path.join(folder, name))
    if not found:
        return ""
    return f"rename what has the name of a module of Python's own, and hides it: {', '.join(found)}"
