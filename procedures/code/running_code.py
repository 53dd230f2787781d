"""Whether a program still runs the code that its files hold: an embedded database executes what was imported, and logs the files.

One rule: nothing is executed. The functions of a module are compared with what its file compiles to now; a module that something
else than a file of source made (a notebook, a test tool that rewrites it) is not compared.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from procedures.code.bundle import capture_bundle
from procedures.declaration.database import Database
from procedures.errors import BundleError

FILES_KEPT_MAX: Final = 512  # whose code is remembered by their text: a test suite opens databases of the same code all the time


def check_running_code(db: Database) -> None:
    """Raises: BundleError, when a function of the application is another one here than in its file."""
    try:
        bundle = capture_bundle(db)
    except BundleError:
        return  # code that is in no file; where a bundle of it is needed, that is said
    for name, source in bundle.modules.items():
        module = sys.modules.get(name)
        if source and module is not None and type(getattr(module, "__loader__", None)) is SourceFileLoader:
            changed = _find_changed(module, _functions_of(source, str(module.__file__)))
            if changed:
                raise BundleError(
                    f"{module.__file__} was changed after this program imported it: {name}.{changed} is another function there. "
                    "The log would hold code that did not run; start the program again"
                )


def _find_changed(module: ModuleType, functions: Mapping[str, Any]) -> str:
    """The first function of the module that is not among these; "" when all are."""
    for value in list(vars(module).values()):
        if not isinstance(value, FunctionType) or value.__module__ != module.__name__:
            continue
        code = value.__code__
        if code.co_filename == module.__file__ and functions.get(code.co_qualname) not in (None, _content(code)):
            return code.co_qualname
    return ""


@functools.lru_cache(maxsize=FILES_KEPT_MAX)
def _functions_of(source: str, file: str) -> Mapping[str, Any]:
    """Qualified name of each function -> its content; None of one that is there more than once, or that does not compile."""
    found: dict[str, Any] = {}
    try:
        code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return found
    for inner in _codes_in(code):
        found[inner.co_qualname] = None if inner.co_qualname in found else _content(inner)
    return found


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _content(code: CodeType) -> Any:
    """What a function does, without its lines."""
    constants = [_constant(value) for value in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags, constants


def _constant(value: Any) -> Any:
    """A constant with its type: 1, 1.0 and True are equal. `in {"a", "b"}` is a frozenset, whose order differs between two
    compilations of one text: it depends on the hash seed, and on which texts the process had interned before.
    """
    if isinstance(value, CodeType):
        return _content(value)
    if isinstance(value, frozenset):
        return frozenset, frozenset(map(_constant, value))
    if isinstance(value, tuple):
        return tuple, tuple(map(_constant, value))
    return type(value), repr(value)
