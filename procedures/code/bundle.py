"""Code bundles: the application's own modules and compiled SQL, as the log keeps them, and the way back to a `Database`.

One rule: an invocation is replayed with the code that it ran with. A function's source alone is not that code (it misses helpers,
constants and statements), so a bundle holds every module of the application that the target module reaches by import
(`procedures.source.own_modules`). What is installed is named by version in `environment()` instead.

A bundle is loaded in isolation (`loaded_modules`): a running program and several bundles of its past live side by side. Its
identity is the SHA-256 of its canonical JSON.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final

import apsw
import orjson
import sqlalchemy
from sqlalchemy.sql import Executable

from procedures.declaration.database import Database
from procedures.errors import BundleError, BundleForged, StatementRefused
from procedures.source.main_module import MAIN, is_main
from procedures.source.own_modules import main_name, own_modules, source_of
from procedures.statements.compiled import sql_of

STATEMENTS_KNOWN_MAX: Final = 4096  # whose SQL is remembered
DIALECT: Final = 1  # rules for declarations, statements and results; a change that a replay would see gets the next number
BUNDLE_BYTES_MAX: Final = 8 << 20  # a catalog record must fit a block beside others; an application's own sources are far smaller

_LEFT_OUT: Final = ("optimize", "main")  # of the JSON where they have no value
MODULE_NAME: Final = re.compile(r"[\w -]+(\.[\w -]+)*")  # wider than Python's: `importlib` takes any file


@dataclass(frozen=True, slots=True)
class Bundle:
    """One version of an application's code."""

    target: str  # module:attribute of the Database
    modules: Mapping[str, str]  # name -> source; "" where there is none to be had (a prompt, a notebook)
    packages: Sequence[str]  # those of the modules that are packages, ascending
    sql: Mapping[str, str]  # module.name of a statement -> its SQL
    procedures: Sequence[Mapping[str, Any]]  # in the order of the numbers in the log: name, parameters
    hash: str  # SHA-256, hexadecimal, of everything else but `requests`
    dialect: int = DIALECT  # how its declarations and statements are compiled
    optimize: int = 0  # that of `python -O`, by which `assert` and `__debug__` are compiled; 0 is not written down
    main: str = ""  # another name of the main module: `pkg.main` of `python -m pkg.main`, `main` of a script that is imported
    requests: Mapping[str, Any] = field(default_factory=dict)  # former signatures, by procedure; of the log, not of the code

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        log = {"requests": dict(self.requests)} if self.requests else {}
        return orjson.dumps({**content_of(self), **log, "hash": self.hash}, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, data: bytes) -> Bundle:
        """Raises: BundleForged when the bytes are no bundle, or not the one that their hash names."""
        try:
            value = orjson.loads(data)
            content = {name: value[name] for name in ("target", "modules", "packages", "sql", "procedures", "dialect")}
            content |= {name: value[name] for name in _LEFT_OUT if name in value}
            bundle = cls(**content, hash=str(value["hash"]), requests=value.get("requests", {}))
            found = hash_of(content)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise BundleForged(f"not a code bundle: {error}") from None
        _check_modules(bundle.modules)
        if found != bundle.hash:
            raise BundleForged(f"the bundle calls itself {bundle.hash[:12]}, its content has the hash {found[:12]}")
        return bundle


def capture_bundle(db: Database, target: str | None = None) -> Bundle:
    """The code of a running application. `target` is `module:attribute`; None: it is found by the object.

    Raises: BundleError when the database is in no module, or its own code is too large.
    """
    target = target or _find_target(db)
    modules = own_modules(target.partition(":")[0])
    content: dict[str, Any] = {
        "target": target,
        "modules": {name: source_of(module) for name, module in modules.items()},
        "packages": sorted(name for name, module in modules.items() if hasattr(module, "__path__")),
        "sql": {f"{name}.{key}": sql for name, module in modules.items() for key, sql in statements_of(module).items()},
        "procedures": [{"name": p.name, "parameters": list(p.parameter_names)} for p in db.procedure_list],
        "dialect": DIALECT,
        "optimize": sys.flags.optimize,
        "main": main_name(modules),
    }
    bundle = Bundle(**content, hash="")
    size = len(orjson.dumps(content_of(bundle)))
    if size > BUNDLE_BYTES_MAX:
        raise BundleError(f"the application's own modules take {size} bytes, limit {BUNDLE_BYTES_MAX}: {', '.join(modules)}")
    return replace(bundle, hash=hash_of(content_of(bundle)))


def bundle_of(version: int, record: Mapping[str, Any]) -> Bundle:
    """The bundle in the value of a catalog record. Raises: BundleForged, naming the version."""
    try:
        bundle = Bundle.from_bytes(str(record["bundle"]).encode())
    except BundleForged as error:
        raise BundleForged(f"catalog version {version}: {error}") from None
    if (stated := record.get("hash", bundle.hash)) != bundle.hash:
        what = f"its record names {str(stated)[:12]}, the bundle in it is {bundle.hash[:12]}"
        raise BundleForged(f"the bundle of catalog version {version} is not the one that its record names: {what}")
    return bundle


def environment() -> dict[str, str]:
    """Versions of all that is not in a bundle and could change what a call does, and options of the interpreter that could."""
    options = [name for name, given in (("-X dev", sys.flags.dev_mode), ("-X utf8", sys.flags.utf8_mode)) if given]
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "sqlite": apsw.sqlite_lib_version(),
        "apsw": apsw.apsw_version(),
        "sqlalchemy": sqlalchemy.__version__,
        "orjson": orjson.__version__,
        "pydantic": _version("pydantic"),
        "cmdlog": _version("cmdlog"),
        **({"options": " ".join(options)} if options else {}),
    }


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _check_modules(modules: object) -> None:
    """Their names become paths where a check of the code needs files. Raises: BundleForged."""
    if not isinstance(modules, dict):
        raise BundleForged("not a code bundle: its modules are no object")
    for name, source in modules.items():
        if not MODULE_NAME.fullmatch(name) or not isinstance(source, str):
            raise BundleForged(f"not a code bundle: {name!r:.100} is no module")


def content_of(bundle: Bundle) -> dict[str, Any]:
    """What its hash is of, as JSON."""
    content = {field.name: getattr(bundle, field.name) for field in fields(bundle) if field.name not in ("hash", "requests")}
    return {name: value for name, value in content.items() if value or name not in _LEFT_OUT}


def hash_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _find_target(db: Database) -> str:
    homes = [p.function.__module__ for p in db.procedure_list]
    for name in dict.fromkeys([*homes, *sys.modules]):
        for attribute, value in list(vars(sys.modules.get(name, ModuleType(name))).items()):
            if value is db:
                return f"{MAIN if is_main(sys.modules[name]) else name}:{attribute}"
    raise BundleError(f"database {db.name!r} is in no module; keep it in a module-level name")


def statements_of(module: ModuleType) -> dict[str, str]:
    """Module-level names of statements -> SQL. Names that another module of the bundle holds too appear in both."""
    found = {}
    for name, value in sorted(vars(module).items()):
        if isinstance(value, Executable) and not isinstance(value, ModuleType):
            with contextlib.suppress(StatementRefused):
                found[name] = _known_sql(_Same(value))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A statement as a key: statements have an `==` of their own, which makes SQL."""

    statement: Executable

    def __hash__(self) -> int:
        return id(self.statement)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.statement is other.statement


@functools.lru_cache(maxsize=STATEMENTS_KNOWN_MAX)
def _known_sql(same: _Same) -> str:
    """`sql_of`, once for each statement: half a millisecond. Raises: StatementRefused."""
    return sql_of(same.statement)
