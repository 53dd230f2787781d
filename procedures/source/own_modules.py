"""The modules of an application: what the target module reaches by import, as far as it is the application's own.

One rule: own is what lies in the target's top-level package or folder, and any other file that is neither the standard library's
nor this framework's nor a distribution's. Each has source that the log can keep, or the application is refused.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from procedures.errors import BundleError
from procedures.source.distributions import is_installed
from procedures.source.main_module import MAIN, importable_name, is_main

FRAMEWORK: Final = ("cmdlog", "procedures", "replay", "snapshot")
SAMPLES: Final = "procedures.samples"
MODULES_PARSED_MAX: Final = 512  # whose imports are remembered by their text: each start of a node asks, as does each test


def own_modules(target: str) -> dict[str, ModuleType]:
    """The target module and every own module that it reaches by import, by name; the main module as `__main__`.

    Raises: BundleError.
    """
    if target not in sys.modules:
        raise BundleError(f"module {target!r} is not imported")
    tops = {name.partition(".")[0] for name in (target, importable_name() if target == MAIN else "")} - {""}
    found: dict[str, ModuleType] = {}
    waiting = [target]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        name = MAIN if is_main(module) else name
        if name in found or module is None or not _is_own(name, module, tops):
            continue
        found[name] = module
        full = (importable_name() or MAIN) if name == MAIN else name
        parent = full.rpartition(".")[0]
        waiting += [parent] if parent else []
        waiting += _imported_names(full, source_of(module), is_package=hasattr(module, "__path__"))
    return dict(sorted(found.items()))


def main_name(modules: dict[str, ModuleType]) -> str:
    """The name under which the main module is imported, or whose package its relative imports are of; "" where neither is so."""
    name = importable_name() if MAIN in modules else ""
    return name if "." in name or any(name in _imports_of(known, module) for known, module in modules.items()) else ""


def source_of(module: ModuleType) -> str:
    """Its source as Python reads it; "" where it was typed at a prompt or in a notebook.

    Raises: BundleError, when it comes from a file without source.
    """
    file = getattr(module, "__file__", None)
    if not file:
        return ""
    try:
        return importlib.util.decode_source(Path(file).read_bytes())
    except (OSError, UnicodeDecodeError, SyntaxError):
        if text := "".join(linecache.getlines(file)):
            return text
    if not Path(file).is_file() and _is_made_up(file):
        return ""
    raise BundleError(
        f"module {module.__name__} has no source in {file}: the log keeps an application's modules as source: no replay could "
        "run this one; start the program from its .py files, and install what is compiled as a distribution"
    )


def folders_of(modules: dict[str, ModuleType]) -> Iterator[Path]:
    """The folders in which imports found these modules."""
    for name, module in modules.items():
        if file := getattr(module, "__file__", None):
            full = importable_name() if name == MAIN else name
            levels = full.count(".") + hasattr(module, "__path__")
            yield Path(file).resolve().parents[levels]


def _is_made_up(file: str) -> bool:
    """Whether no file was ever there: a notebook's cell, a text that was executed."""
    return not any(parent.is_file() for parent in Path(file).absolute().parents) and Path(file).suffix not in (".pyc", ".so")


def _is_own(name: str, module: ModuleType, tops: set[str]) -> bool:
    top = name.partition(".")[0]
    if top in FRAMEWORK:
        return name.startswith(f"{SAMPLES}.")
    if name == MAIN or top in tops:
        return True
    file = getattr(module, "__file__", None)
    return top not in sys.stdlib_module_names and file is not None and not is_installed(file)


def _imports_of(name: str, module: ModuleType) -> tuple[str, ...]:
    return _imported_names(name, source_of(module), is_package=hasattr(module, "__path__"))


@functools.lru_cache(maxsize=MODULES_PARSED_MAX)
def _imported_names(name: str, source: str, *, is_package: bool) -> tuple[str, ...]:
    """Absolute names of everything that the source imports, attributes of modules among them (they may be modules too)."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    package = name if is_package else name.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(names)
