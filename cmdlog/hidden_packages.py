"""Whether a file of the user hides one of this program's packages, as a `procedures.py` beside a script does.

One rule: nothing is imported to find that out. Python takes the first package of a name that it finds on `sys.path`, and a
script's own folder comes first. What is found too late shows as a missing module somewhere inside this program.
"""

from __future__ import annotations

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
