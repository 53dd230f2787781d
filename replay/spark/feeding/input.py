"""The input of a feed, files or a DataFrame, and how a second run recognises the same input.

One rule: what two runs of a job are given is compared by content, before the second one sends anything. Files of this machine by
name, size and hash; files elsewhere by their URI and rows; a DataFrame by its rows, as a set of (procedure, params), in any
order. Nondeterministic rows (`rand()`, a UDF that says `asNondeterministic`) have no content to compare: of them only the
columns and the input files are.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote, urlsplit

import orjson

from replay.errors import ReplayError
from replay.spark.base.filesystems import open_place, scheme_of
from replay.spark.feeding.task import PARAMS, PROCEDURE
from replay.spark.jobs.job import SparkFailed, cause_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOLD_MAX: Final = 64  # files that are named one by one
READ_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 16 << 20  # of the first line, which is looked at before Spark starts
JSON: Final = (".json", ".jsonl", ".ndjson")
_PATTERN: Final = re.compile(r"[\\*?{}\[\]]")  # as Hadoop understands them
_DDL: Final = f"{PROCEDURE} string, {PARAMS} string"


class BadCalls(ReplayError):
    """The input holds no calls."""

    exit_code = 2
    hint = "it needs the columns `procedure` (string) and `params` (a struct, a map, or a JSON object as string)"


@dataclass(frozen=True, slots=True)
class CallFiles:
    """Calls in a Parquet or JSON file, or in a folder of such files: of this machine, or of what Spark knows (s3a://…)."""

    path: str  # or URI
    is_json: bool
    files: Mapping[str, str]  # of this machine: name -> size and hash
    stamps: Mapping[str, tuple[int, int]]  # the same: name -> size and time of the last change

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> CallFiles:
        """Reads all files of this machine once. Raises: BadCalls, for what cannot be calls; OSError."""
        path = os.fspath(path)
        if scheme_of(path) not in ("", "file"):
            return cls(path, path.removesuffix(".gz").rstrip("/").endswith(JSON), {}, {})
        path = open_place(path)[1]
        names = sorted(_names(path))
        if not names:
            raise BadCalls(f"{path} contains no file" if os.path.isdir(path) else f"{path} does not exist")
        is_json = all(Path(name.removesuffix(".gz")).suffix in JSON for name in (names if os.path.isdir(path) else [path]))
        stamps = {name: _stamp(os.path.join(path, name)) for name in names}
        for name in (name for name in names if stamps[name][0]):  # Spark leaves empty files out
            (_check_json if is_json else _check_parquet)(os.path.join(path, name).rstrip("/"))
        return cls(path, is_json, {name: _content(os.path.join(path, name)) for name in names}, stamps)

    @property
    def is_remote(self) -> bool:
        return not self.path.startswith("/")

    def request_json(self) -> dict[str, Any]:
        """What the job's request says about them, if they are files of this machine."""
        told = {name or os.path.basename(self.path): content for name, content in self.files.items()}
        of_all = hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()
        each = {"files": told} if len(told) <= TOLD_MAX else {"count": len(told), "sha256": of_all}
        return {"path": self.path, **each}

    def read(self, spark: SparkSession) -> DataFrame:
        """Params of JSON lines come as they are written there. Raises: BadCalls."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - executors import what imports this module

        uri = self.path if self.is_remote else uri_of(_PATTERN.sub(lambda found: f"\\{found[0]}", self.path))
        try:
            if self.is_json and self.is_remote and (first := spark.read.text(uri).first()) is not None:
                _check_line(self.path, str(first[0]).encode())
            return spark.read.schema(_DDL).json(uri) if self.is_json else spark.read.parquet(uri)
        except AnalysisException as error:
            raise BadCalls(f"{self.path} cannot be read as calls: {cause_of(error)}") from error

    def check_unchanged(self) -> None:
        """Raises: BadCalls when they have changed since their content was read."""
        now = {name: _stamp(os.path.join(self.path, name)) for name in _names(self.path)}
        if changed := sorted(name for name in {*now, *self.stamps} if now.get(name) != self.stamps.get(name)):
            raise BadCalls(
                f"{os.path.join(self.path, changed[0]).rstrip('/')} was changed while it was being read; nothing was sent"
            )


def uri_of(path: str) -> str:
    """For Spark, whose own file system may be another one than this machine's; a URI is Spark's to read."""
    return path if scheme_of(path) else f"file://{os.path.abspath(path)}"


def _names(path: str) -> Iterator[str]:
    """Files below the folder, without those that Spark ignores; "" of a file itself."""
    if os.path.isfile(path):
        yield ""
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if _is_shown(name)]
        yield from (os.path.relpath(os.path.join(folder, name), path) for name in files if _is_shown(name))


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _stamp(path: str) -> tuple[int, int]:
    found = os.stat(path.rstrip("/"))
    return found.st_size, found.st_mtime_ns


def _content(path: str) -> str:
    digest, size = hashlib.sha256(), 0
    with open(path.rstrip("/"), "rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return f"{size} bytes, sha256 {digest.hexdigest()}"


def _check_parquet(path: str) -> None:
    """Raises: BadCalls."""
    import pyarrow  # noqa: PLC0415 - a command that ends before this needs none
    from pyarrow import parquet  # noqa: PLC0415 - as above

    try:
        _check_columns(path, parquet.read_schema(path).names)
    except pyarrow.ArrowException as error:
        raise BadCalls(f"{path} is not a Parquet file: {error}") from error


def _check_json(path: str) -> None:
    """Raises: BadCalls, by the first line."""
    with _open(path) as file:
        line = next((line for line in iter(lambda: file.readline(LINE_BYTES_MAX), b"") if line.strip()), b"")
    if line:
        _check_line(path, line)


def _check_line(path: str, line: bytes) -> None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadCalls(f"{path} does not hold JSON lines: its first line is not a JSON value: {error}") from error
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, dict):
        raise BadCalls(f"{path} does not hold JSON lines: its first line is not an object")
    _check_columns(path, list(value))


def _open(path: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.endswith(".gz") else open(path, "rb")


def _check_columns(path: str, names: list[str]) -> None:
    if missing := [name for name in (PROCEDURE, PARAMS) if name not in names]:
        raise BadCalls(f"{path} has no column {' and no '.join(missing)}; its columns are {', '.join(names) or 'none'}")


# -- a DataFrame -----------------------------------------------------------------------------------------------------------


def calls_of(frame: DataFrame) -> DataFrame:
    """Procedure and params, the latter as JSON text. Raises: BadCalls."""
    from pyspark.sql import functions  # noqa: PLC0415 - executors import what imports this module
    from pyspark.sql.types import MapType, StringType, StructType  # noqa: PLC0415 - as above

    kinds = {field.name: field.dataType for field in frame.schema.fields}
    if not isinstance(kinds.get(PROCEDURE), StringType) or not isinstance(kinds.get(PARAMS), StringType | StructType | MapType):
        told = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
        raise BadCalls(f"the DataFrame has the columns {told}")
    params = functions.col(PARAMS)
    if not isinstance(kinds[PARAMS], StringType):
        params = functions.to_json(params, {"ignoreNullFields": "false"})
    return frame.select(functions.col(PROCEDURE), params.alias(PARAMS))


def rows_stated(calls: DataFrame) -> dict[str, Any]:
    """Count and digest of the rows of `calls_of`, whatever their order. Raises: SparkFailed."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import functions  # noqa: PLC0415 - as above

    columns = [functions.col(name) for name in (PROCEDURE, PARAMS)]
    hashed = functions.xxhash64(*columns, *(column.isNull() for column in columns)).cast("decimal(20,0)")
    try:
        found: Any = calls.agg(functions.count(functions.lit(1)), functions.sum(hashed)).first()
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"the rows of the DataFrame could not be read: {cause_of(error)}") from error
    return {"rows": int(found[0]), "digest": str(found[1] or 0)}


def chance_stated(frame: DataFrame) -> dict[str, Any] | None:
    """What is known about rows that may differ in each run; None for rows that are always the same.

    Spark Connect does not say; rows there count as constant.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark itself does not show it
        if plan.deterministic():
            return None
    except Exception:  # noqa: BLE001 - of Spark Connect, where errors differ by version
        return None
    files = {uri: _stamp_of_uri(uri) for uri in sorted(frame.inputFiles())}
    return {"columns": {field.name: field.dataType.simpleString() for field in frame.schema.fields}, "files": files}


def _stamp_of_uri(uri: str) -> list[int] | None:
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    try:
        return list(_stamp(unquote(parts.path)))
    except OSError:
        return None


# -- either ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedInput:
    """The input of a feed. Spark is started when it is needed."""

    calls: DataFrame | CallFiles
    open_session: Callable[[], SparkSession]

    @property
    def paths(self) -> list[str]:
        """Paths that are read, as far as they are known."""
        return [self.calls.path] if isinstance(self.calls, CallFiles) else []

    def frame(self) -> DataFrame:
        """Raises: BadCalls."""
        return self.calls.read(self.open_session()) if isinstance(self.calls, CallFiles) else self.calls

    def request_json(self, pinned: DataFrame | None = None) -> dict[str, Any]:
        """What a request says about it. `pinned` are its rows as this run wrote them. Raises: SparkFailed, BadCalls."""
        if isinstance(self.calls, CallFiles) and not self.calls.is_remote:
            return self.calls.request_json()
        frame = pinned if pinned is not None else calls_of(self.frame())
        if isinstance(self.calls, CallFiles):
            return {"path": self.calls.path, **rows_stated(frame)}
        return chance_stated(self.calls) or rows_stated(frame)
