"""Ships this package to executors that lack it: one zip of its sources.

One rule: the name identifies the content. Spark refuses another file under a name that it knows, and its Python workers keep
the code that they imported first; so the zip is named by a hash of the sources, an executor is asked for the hash of what it runs
(`replay.spark.base.version_check`), and a difference is refused.

The hash is of the sources alone: a checkout, an installed package and the zip itself give the same one. Packages with machine
code (pyarrow, orjson, apsw, …) do not travel this way: they are installed on the executors, or come with `spark.archives`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replay.spark.base.scratch import make_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES: Final = ("cmdlog", "procedures", "replay", "snapshot")
DISCOVERED: Final = "replay/spark/discover/pyspark_cmdlog.py"  # also at the top of the zip, where Spark looks for data sources
FACADE: Final = "cmdlog/__init__.py"  # states the version; it is read, since lower layers must not import it
_RELEASE: Final = re.compile(rb'^__version__ = "([^"]+)"', re.MULTILINE)
PATH: Final = "PYTHONPATH"
_SENT: Final = "spark.cmdlog.sources"  # setting of a session: the zip that was added to it
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first moment of the format: bytes depend on the sources alone


def sources() -> Iterator[tuple[str, bytes]]:
    """(path, content) of every module of ours, in an order that does not depend on where they are."""
    home = Path(__file__).parents[3]
    top: Path | zipfile.Path = zipfile.Path(home) if home.is_file() else home
    for package in PACKAGES:
        yield from _modules(top / package, package)


def _modules(folder: Path | zipfile.Path, path: str) -> Iterator[tuple[str, bytes]]:
    for name in sorted(entry.name for entry in folder.iterdir()):
        entry = folder / name
        if name.endswith(".py"):
            yield f"{path}/{name}", entry.read_bytes()
        elif entry.is_dir() and (entry / "__init__.py").is_file():
            yield from _modules(entry, f"{path}/{name}")


@functools.cache
def code_version() -> str:
    """The version of this package with a hash of its sources, as they were when the process asked first."""
    return _version(sources())


def _version(modules: Iterable[tuple[str, bytes]]) -> str:
    digest, release = hashlib.sha256(), "unknown"
    for path, content in modules:
        if path == FACADE and (stated := _RELEASE.search(content)):
            release = stated[1].decode()
        digest.update(b"%s %d\n%s" % (path.encode(), len(content), content))
    return f"{release}-{digest.hexdigest()[:12]}"


def write_zip(path: str) -> str:
    """Writes the zip: to `path`, or, when that is a folder, into it under its own name. Where it is."""
    modules = list(sources())
    if os.path.isdir(path):
        path = os.path.join(path, f"cmdlog-{_version(modules)}.zip")
    temporary = f"{path}.{os.getpid()}.tmp"
    with zipfile.ZipFile(temporary, "w") as archive:  # stored: other versions of zlib compress to other bytes
        for name, content in modules:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
            if name == DISCOVERED:
                archive.writestr(zipfile.ZipInfo(os.path.basename(name), _EPOCH), content)
    os.replace(temporary, path)
    return path


def ship(spark: SparkSession) -> str:
    """Makes the executors of a session run the sources of this process; done once however often it is called. Their version.

    A session of this machine alone has them already. Works over Spark Connect.
    """
    if not runs_here(spark) and os.path.basename(made_zip()) not in _sent(spark):
        spark.addArtifacts(made_zip(), pyfile=True)
        spark.conf.set(_SENT, os.path.basename(made_zip()))
    return code_version()


def runs_here(spark: SparkSession) -> bool:
    """Whether its executors are in this process, or forked from it."""
    master = spark.conf.get("spark.master", "") or ""
    return master.startswith("local") and not master.startswith("local-cluster")


def _sent(spark: SparkSession) -> set[str]:
    """Names of the files that executors get, as far as they can be asked for."""
    sent = {spark.conf.get(_SENT, "") or ""}
    submitted = spark.conf.get("spark.submit.pyFiles", "") or ""
    return sent | {os.path.basename(path) for path in submitted.split(",")}


@functools.cache
def made_zip() -> str:
    """The zip of this process's sources."""
    return write_zip(make_scratch())
