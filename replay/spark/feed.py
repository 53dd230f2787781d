"""`feed`: a DataFrame of calls into a running service, each executed once.

One rule: what is sent is fixed before the first call goes out. The rows are written to OUT first, since a DataFrame that is
computed again may have its rows in other places, and with them other keys; from then on only those files are read. OUT is the
memory of the job: as long as it is kept, no row is executed twice.

Calls of one file that run on one partition are executed in order, as far as they are not refused for a while; files go side by
side.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import parquet

from cmdlog.wal.files import RealFiles
from replay.errors import ReplayError
from replay.meter import Progress
from replay.spark.feedtask import PARAMS, PROCEDURE, Send, feed_file
from replay.spark.job import SparkFailed, cause_of, run_orders
from replay.spark.staging import FORMAT, Staging, staging
from replay.spark.versions import versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from replay.spark.attempt import Attempt

JOB: Final = "feed"
CALLS: Final = "calls"
REPORT: Final = "report"
ROWS_PER_FILE: Final = 100_000  # of a task: some seconds of a server's time, which a second attempt repeats at most
_DDL: Final = (
    "file int, row long, key string, procedure string, params string, ended string, code string, abort_code string, "
    "detail string, txn_id long"
)


class BadCalls(ReplayError):
    """The DataFrame holds no calls."""

    exit_code = 2
    hint = "it needs the columns `procedure` (string) and `params` (a struct, a map, or a JSON object as string)"


@dataclass(frozen=True, slots=True)
class Fed:
    """A finished feed."""

    path: str
    manifest: Mapping[str, Any]
    seconds: float
    calls: DataFrame  # that were given

    @property
    def failed(self) -> int:
        """Calls that did not end well."""
        return sum(count for ended, count in self.manifest["statuses"].items() if ended != "ok")

    def report(self) -> DataFrame:
        """Those calls: file, row, key, procedure, params, ended (aborted, failed, refused), code, abort_code, detail, txn_id."""
        spark = self.calls.sparkSession
        if not self.failed:
            return spark.createDataFrame([], _DDL)
        return spark.read.schema(_DDL).parquet(_uri(os.path.join(self.path, REPORT)))


def feed(
    calls: DataFrame,
    send: Send,
    *,
    job: str,
    to: str,
    rows_per_file: int = ROWS_PER_FILE,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> Fed:
    """Sends every row of `calls` (procedure, params) once; the new folder `to` takes the report.

    `send` is `cmdlog.client.feeder.Feeder(url)`; it waits as the server asks (Retry-After). A run that was broken off is gone on
    with by the same call, with the rows of the first run, whatever `calls` gives now.

    Raises: BadCalls, NotEmpty, OtherJob, Locked; Interrupted, SparkFailed (the server could not be reached, or let nobody in).
    """
    began, files = time.monotonic(), RealFiles()
    request = {"job": JOB, "name": job}

    def work(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
        return feed_file(order, attempt, send)

    with staging(files, to, beside=(CALLS, f"{CALLS}.tmp")) as folder:
        manifest = folder.decided(request)
        if manifest is None:
            orders = folder.begun(request)
            if orders is None:
                _fix_rows(calls, folder, rows_per_file)
                orders = list(_orders(folder, job))
                folder.begin(request, orders)
            manifest = _manifest(request, run_orders(calls.sparkSession, folder, orders, work, progress))
        folder.publish(manifest, [(file["from"], file["path"]) for file in manifest["files"]])
    return Fed(folder.out, manifest, time.monotonic() - began, calls)


def _fix_rows(calls: DataFrame, folder: Staging, rows_per_file: int) -> None:
    """Writes the rows, in whatever order they come this time."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - executors import this module, too
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import functions  # noqa: PLC0415 - as above
    from pyspark.sql.types import MapType, StringType, StructType  # noqa: PLC0415 - as above

    kinds = {field.name: field.dataType for field in calls.schema.fields}
    if not isinstance(kinds.get(PROCEDURE), StringType) or not isinstance(kinds.get(PARAMS), StringType | StructType | MapType):
        told = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
        raise BadCalls(f"the DataFrame has the columns {told}")
    params = functions.col(PARAMS)
    if not isinstance(kinds[PARAMS], StringType):
        params = functions.to_json(params, {"ignoreNullFields": "false"})
    temporary, final = (os.path.join(folder.folder, name) for name in (f"{CALLS}.tmp", CALLS))
    for path in (temporary, final):
        shutil.rmtree(path, ignore_errors=True)
    chosen = calls.select(functions.col(PROCEDURE), params.alias(PARAMS))
    try:
        chosen.write.option("maxRecordsPerFile", rows_per_file).parquet(_uri(temporary))
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"the rows could not be written to {temporary}: {cause_of(error)}") from error
    os.rename(temporary, final)


def _orders(folder: Staging, job: str) -> Iterator[dict[str, Any]]:
    """One for each file."""
    began_ms = int(time.time() * 1000)
    path = os.path.join(folder.folder, CALLS)
    names = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
    for number, name in enumerate(names):
        rows = parquet.read_metadata(os.path.join(path, name)).num_rows
        yield {
            "key": f"c{number:06d}",
            "partition": number,
            "job": job,
            "began_ms": began_ms,
            "path": os.path.join(path, name),
            "calls": rows,
            "bytes": rows,
        }


def _manifest(request: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row["statuses"])
    files = [
        {**file, "from": file["path"], "path": f"{REPORT}/{row['key']}.parquet", "file": row["partition"]}
        for row in rows
        for file in row["files"]
    ]
    return {
        "format": FORMAT,
        **request,
        "versions": versions(),
        "calls": sum(row["calls"] for row in rows),
        "statuses": dict(sorted(statuses.items())),
        "files": files,
    }


def _uri(path: str) -> str:
    """For Spark, whose own file system may be another one."""
    return f"file://{os.path.abspath(path)}"
