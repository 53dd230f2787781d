"""The modules of a code bundle, run beside whatever else of this process has their names, and the `Database` in them.

One rule: a bundle's modules stand in `sys.modules` only while one of them imports.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.util
import linecache
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Final

import sqlalchemy

from procedures.code.bundle import DIALECT, Bundle, content_of, hash_of, statements_of
from procedures.declaration.database import Database
from procedures.errors import BundleError, BundleForged, BundleSqlChanged
from procedures.execution.call_settings import standard_settings
from procedures.execution.outcome_bodies import BUNDLED_MAIN, MAIN
from procedures.raised_errors import class_name, is_raised, repr_of
from procedures.source.loading import ProgramBegins, loading

_LOCK: Final = threading.RLock()  # of sys.modules while a bundle is in it


def load_bundle(bundle: Bundle) -> Database:
    """Runs the bundle's modules, with the settings of Python that its calls have, and returns its Database.

    Raises: BundleForged, BundleError (no source, the code fails, or it declares other procedures than the bundle states),
    BundleSqlChanged (its statements compile to other SQL here).
    """
    if hash_of(content_of(bundle)) != bundle.hash:
        raise BundleForged(f"the bundle calls itself {bundle.hash[:12]}, its content has another hash; take it from a backup")
    module_name, _, attribute = bundle.target.partition(":")
    if not bundle.modules.get(module_name):
        raise BundleError(
            f"bundle {bundle.hash[:12]} of {bundle.target} holds no source (it was typed at a prompt or in a notebook); "
            "only the very same program can run it"
        )
    if bundle.dialect != DIALECT:
        raise BundleError(f"bundle {bundle.hash[:12]} of {bundle.target} was made by a newer version of cmdlog; use that version")
    loaded = LoadedModules(bundle)
    try:
        with standard_settings(), loading():
            module = loaded.load(module_name)
        db = getattr(module, attribute)
    except Exception as error:
        what = f"{class_name(error)}: {error}" if is_raised(error, OSError) else repr_of(error)  # the former names the file
        raise BundleError(f"bundle {bundle.hash[:12]} of {bundle.target} does not run: {what}{raised_at(error)}") from error
    if not isinstance(db, Database):
        raise BundleError(f"{bundle.target} in bundle {bundle.hash[:12]} is no Database")
    stated, declared = [procedure["name"] for procedure in bundle.procedures], [p.name for p in db.procedure_list]
    if stated != declared:
        raise BundleError(
            f"bundle {bundle.hash[:12]} of {bundle.target} states the procedures {', '.join(stated)}, "
            f"and its code declares {', '.join(declared) or 'none'}; declare them before the module uses a database"
        )
    names = {alias(name): name for name in bundle.modules}
    here = {
        f"{names[name]}.{key}": sql
        for name, module in loaded.modules.items()
        if name in names
        for key, sql in statements_of(module).items()
    }
    for name, sql in bundle.sql.items():
        if here.get(name) != sql:
            raise BundleSqlChanged(
                f"statement {name} of bundle {bundle.hash[:12]} was <{sql}> and compiles to <{here.get(name)}> with "
                f"SQLAlchemy {sqlalchemy.__version__}; replay with the version that the environment record names"
            )
    return db


class LoadedModules:
    """The modules of one bundle, alive beside whatever else has their names."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self.modules: dict[str, ModuleType] = {}
        self._standing = False  # in `sys.modules` now; under _LOCK
        self._finder = _Finder(bundle, self._builtins())

    def load(self, target: str) -> ModuleType:
        """Imports all modules of the bundle; returns the target."""
        with self._in_place():
            for name in sorted(self._bundle.modules, key=lambda name: name != MAIN):  # others find it by its other name
                importlib.import_module(alias(name))
            return sys.modules[alias(target)]

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """The bundle's modules stand in `sys.modules`; what they displace comes back after."""
        names = [alias(name) for name in self._bundle.modules] + ([self._bundle.main] if self._bundle.main else [])
        with _LOCK:
            if self._standing:  # an import within an import: a module that is half done must be found, or it is begun again
                yield
                return
            parents = [(sys.modules[parent], child) for name in names for parent, _, child in [name.rpartition(".")]
                       if parent in sys.modules and parent not in names]  # fmt: skip
            attributes = [(parent, child, getattr(parent, child, None)) for parent, child in parents]
            displaced = {name: sys.modules.pop(name) for name in names if name in sys.modules}
            sys.modules.update(self.modules)
            sys.meta_path.insert(0, self._finder)
            self._standing = True
            try:
                yield
            finally:
                self._standing = False
                sys.meta_path.remove(self._finder)
                self.modules = {name: sys.modules.pop(name) for name in names if name in sys.modules}
                sys.modules.update(displaced)
                for parent, child, value in attributes:
                    if value is not None:
                        setattr(parent, child, value)

    def _builtins(self) -> dict[str, Any]:
        """The built-ins of the bundle's modules: an import inside a function finds the bundle's modules too."""
        space = dict(vars(builtins))

        def import_(name: str, *args: Any, **kwargs: Any) -> Any:
            with self._in_place():
                return builtins.__import__(name, *args, **kwargs)

        space["__import__"] = import_
        return space


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and runs the bundle's modules."""

    def __init__(self, bundle: Bundle, space: dict[str, Any]) -> None:
        self._bundle, self._space = bundle, space

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        name = MAIN if fullname == alias(MAIN) else fullname
        if name not in self._bundle.modules:
            return None
        origin = f"<bundle {self._bundle.hash[:12]}>/{name.replace('.', '/')}.py"
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=name in self._bundle.packages)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is None or spec.origin is None:
            raise BundleError(f"module {module.__name__} was not found by its bundle")
        source = self._bundle.modules[MAIN if module.__name__ == alias(MAIN) else module.__name__]
        linecache.cache[spec.origin] = (len(source), None, source.splitlines(keepends=True), spec.origin)
        module.__dict__["__builtins__"] = self._space
        if module.__name__ == alias(MAIN) and (main := self._bundle.main):
            sys.modules[main] = module
            module.__spec__, module.__package__ = ModuleSpec(main, self, origin=spec.origin), main.rpartition(".")[0]
        with contextlib.suppress(ProgramBegins, SystemExit):
            exec(compile(source, spec.origin, "exec", dont_inherit=True, optimize=self._bundle.optimize), module.__dict__)  # noqa: S102 - the log's own code


def alias(name: str) -> str:
    """A program's main module must not run as one again: `if __name__ == "__main__"` stays false."""
    return BUNDLED_MAIN if name == MAIN else name


def raised_at(error: BaseException) -> str:
    """In parentheses the innermost line of a bundle's modules that raised it; "" where it is none of theirs."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if is_bundled(frame):
            return f" ({frame.f_code.co_filename.partition('>/')[2]}, line {line})"
    return ""


def is_bundled(frame: FrameType) -> bool:
    """Whether it runs code of a bundle, in whichever thread."""
    return frame.f_code.co_filename.startswith("<bundle ")
