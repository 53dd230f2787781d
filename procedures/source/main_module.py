"""The main module of a program under the name by which its other modules import it.

Python gives a program's main module the name `__main__`. Where another module imports it by the name of its file, Python runs
that file a second time: a second `Database` with the same tables, and procedures of one are called on the other.

One rule: they are one module. A main module that declares a `Database` is found under its own name from then on, and in a bundle
it is one module with two names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

MAIN: Final = "__main__"


def importable_name() -> str:
    """`pkg.main` of `python -m pkg.main`, `main` of `python main.py`; "" where no import would find the main module."""
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    folder, name = os.path.split(os.path.abspath(file)) if file else ("", "")
    stem, extension = os.path.splitext(name)
    found = extension == ".py" and stem.isidentifier() and stem not in sys.stdlib_module_names
    return stem if found and folder in map(os.path.abspath, sys.path) else ""


def package_of_main() -> str:
    """The package of a main module that was started by `python -m`; "" else."""
    return importable_name().rpartition(".")[0]


def share_main(namespace: Mapping[str, Any]) -> None:
    """The module of this namespace declares something: if it is the main one, imports by its own name find it."""
    main = sys.modules.get(MAIN)
    if main is not None and namespace is vars(main) and (name := importable_name()):
        sys.modules.setdefault(name, main)


def is_main(module: ModuleType | None) -> bool:
    """Whether it is the program's main module, under whichever name."""
    return module is not None and module is sys.modules.get(MAIN)
