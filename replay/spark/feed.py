"""`feed`: a DataFrame of calls into a running service, each executed once.

One rule: what is sent is fixed before the first call goes out. The rows are written to OUT first, since a DataFrame that is
computed again may have its rows in other places, and with them other keys; from then on only those files are read. OUT is the
memory of the job: as long as it is kept, no row is executed twice.

Calls of one file that run on one partition are executed in order, as far as they are not refused for a while; files go side by
side.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import parquet

from cmdlog.wal.files import RealFiles
from replay.meter import Progress
from replay.spark.apart import check_apart
from replay.spark.calls import CallFiles, Given, calls_of
from replay.spark.feedtask import PARAMS, PROCEDURE, Send, feed_file, target_of
from replay.spark.inputs import output_path
from replay.spark.job import Sessions, SparkFailed, cause_of, opened, run_orders
from replay.spark.staging import FORMAT, OtherRequest, Staging, check_same, finished, is_finished, recorded, staging
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
_CALLS_DDL: Final = f"{PROCEDURE} string, {PARAMS} string"
ADVICE: Final = (
    "the job goes on with the calls that it was begun with, on the cluster that it was begun on, or is answered by its report; "
    "other calls, or another cluster, need a --job and an OUT of their own"
)


@dataclass(frozen=True, slots=True)
class Fed:
    """A finished feed."""

    path: str
    manifest: Mapping[str, Any]
    seconds: float
    given: Given
    already: bool = False  # by an earlier run; this one has sent nothing

    @property
    def failed(self) -> int:
        """Calls that did not end well."""
        return sum(count for ended, count in self.manifest["statuses"].items() if ended != "ok")

    def report(self) -> DataFrame:
        """Those calls: file, row, key, procedure, params, ended (aborted, failed, refused), code, abort_code, detail, txn_id."""
        spark = self.given.open_session()
        if not self.failed:
            return spark.createDataFrame([], _DDL)
        return spark.read.schema(_DDL).parquet(_uri(os.path.join(self.path, REPORT)))


def feed(
    calls: DataFrame | CallFiles,
    send: Send,
    *,
    job: str,
    to: str,
    spark: Sessions | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> Fed:
    """Sends every row of `calls` (procedure, params) once; the new folder `to` takes the report.

    `send` is `cmdlog.client.feeder.Feeder(url)`; it waits as the server asks (Retry-After), and gives a server up that does not
    answer at all for `give_up_after_s`: the job then ends, and the same call goes on with it. With `CallFiles` `spark` is the
    session, or what starts it.

    A run that was broken off is gone on with by the same call, with the rows of the first run; a finished one is answered with
    its report, and nothing is sent. What counts as the same: `job`, the server's cluster, which the driver asks for, and the
    content of `calls`. Of files name, size and hash count; of a DataFrame its rows, in any order, so they are computed once more.
    Not noticed is a DataFrame of chance (`rand()`, a UDF marked `asNondeterministic`) that gives other rows, as long as its
    columns and input files are those of the first run. Rows that change without Spark's knowledge (`current_timestamp()`, `limit`
    without order) are refused the second time: `spark.read.parquet(f"{to}.unfinished/calls")` are the rows of the first run, and
    go on with it.

    Raises: BadCalls, NotEmpty, OtherJob, Locked; Interrupted, SparkFailed; ServerAway, or a TaskError that tells of it, when the
    server could not be reached, or let nobody in.
    """
    began, files, out = time.monotonic(), RealFiles(), output_path(to)
    given = _given(calls, spark)
    request: dict[str, Any] = {"job": JOB, "name": job}
    check_apart(out, given.paths)

    def work(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
        return feed_file(order, attempt, send)

    def whole(calls: Mapping[str, Any], folder: str = "") -> dict[str, Any]:
        return _request({**request, "calls": calls}, folder, send, progress)

    with _advised():
        if is_finished(out):
            manifest = finished(out, whole(given.stated(), out))
            if manifest is not None:
                return Fed(out, manifest, time.monotonic() - began, given, already=True)
        with staging(files, to, beside=(CALLS, f"{CALLS}.tmp")) as folder:
            manifest, orders = None, None
            if folder.is_begun:
                request = whole(given.stated(), folder.folder)
                manifest = folder.decided(request)
                orders = folder.begun(request) if manifest is None else None
            if manifest is None:
                session = given.open_session()
                if orders is None:
                    request = whole(given.stated(_fix_rows(given, folder, rows_per_file)))
                    orders = list(_orders(folder, job, request.get("target", "")))
                    folder.begin(request, orders)
                manifest = _manifest(request, run_orders(session, folder, orders, work, progress))
            folder.publish(manifest, [(file["from"], file["path"]) for file in manifest["files"]])
    return Fed(out, manifest, time.monotonic() - began, given)


def _request(stated: Mapping[str, Any], folder: str, send: Send, tell: Callable[[Progress], None]) -> dict[str, Any]:
    """The request, with whom it is for. The server is asked once all else is known to be what the folder was begun with.

    Raises: OtherRequest; ServerAway.
    """
    if folder and (found := recorded(folder)) is not None:
        where, known = found
        check_same(where, known, {**stated, **{name: known[name] for name in ("target",) if name in known}})
    began = time.monotonic()
    target = target_of(send, lambda why: tell(Progress(0, 0, time.monotonic() - began, waiting=why)))
    return {**stated, **({"target": target} if target else {})}


def _given(calls: DataFrame | CallFiles, spark: Sessions | None) -> Given:
    if isinstance(calls, CallFiles):
        if spark is None:
            raise TypeError("feed() of CallFiles needs spark=")
        return Given(calls, lambda: opened(spark))
    return Given(calls, lambda: calls.sparkSession)


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Another request over this output: what is to be done in a feed."""
    try:
        yield
    except OtherRequest as error:
        error.hint = ADVICE
        raise


def _fix_rows(given: Given, folder: Staging, rows_per_file: int) -> DataFrame:
    """Writes the rows, in whatever order they come this time; gives them as they are written."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - executors import this module, too
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    calls = calls_of(given.frame())
    temporary, final = (os.path.join(folder.folder, name) for name in (f"{CALLS}.tmp", CALLS))
    for path in (temporary, final):
        shutil.rmtree(path, ignore_errors=True)
    try:
        calls.write.option("maxRecordsPerFile", rows_per_file).parquet(_uri(temporary))
    except (PySparkException, Py4JError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise SparkFailed(f"the rows could not be written to {temporary}: {cause_of(error)}") from error
    if isinstance(given.calls, CallFiles):
        given.calls.check_unchanged()
    os.rename(temporary, final)
    return given.open_session().read.schema(_CALLS_DDL).parquet(_uri(final))


def _orders(folder: Staging, job: str, target: str) -> Iterator[dict[str, Any]]:
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
            "target": target,
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
        "job": JOB,
        "name": request["name"],
        "request": request,
        "versions": versions(),
        "calls": sum(row["calls"] for row in rows),
        "statuses": dict(sorted(statuses.items())),
        "files": files,
    }


def _uri(path: str) -> str:
    """For Spark, whose own file system may be another one."""
    return f"file://{os.path.abspath(path)}"
