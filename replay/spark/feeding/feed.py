"""`feed`: a DataFrame of calls into a running service, each executed once.

One rule: what is sent is fixed before the first call goes out. The rows are written to OUT first, since a DataFrame that is
computed again may have its rows in other places, and with them other keys; from then on only those files are read. OUT is the
memory of the job: as long as it is kept, no row is executed twice.

A task sends a range of rows, and ranges go side by side on all cores. Calls of one range that run on one partition are executed
in order, unless they are rejected for a while; `rows="in order"` makes a range of each written file. After an attempt that
died the next one resumes after the rows that had answers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from pyarrow import parquet

from cmdlog.wal.files import RealFiles
from replay.recover.progress import RecoveryProgress
from replay.spark.base.parallelism import parallelism_of
from replay.spark.base.version_check import versions
from replay.spark.feeding.input import CallFiles, FeedInput, calls_of
from replay.spark.feeding.marks import KEY_ROWS, MARKS
from replay.spark.feeding.task import PARAMS, PROCEDURE, SendRows, ServerAway, feed_file, target_of
from replay.spark.jobs.fetched_inputs import output_path
from replay.spark.jobs.job import Sessions, SparkFailed, cause_of, interruptible, is_interruption, opened, run_orders
from replay.spark.jobs.output_checks import check_output
from replay.spark.jobs.staging import FORMAT, OtherRequest, Staging, check_same, finished, is_finished, output, recorded, staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from replay.spark.jobs.task_attempt import Attempt

JOB: Final = "feed"
CALLS: Final = "calls"
REPORT: Final = "report"
ROWS_PER_FILE: Final = 100_000
RANGE_ROWS_MIN: Final = 2_500  # fewer would cost more to hand out than to send
Rows = Literal["side by side", "in order"]
"""Whether ranges of one file may be sent at the same time."""
_DDL: Final = (
    "file int, row long, key string, procedure string, params string, ended string, code string, abort_code string, "
    "detail string, txn_id long"
)
_CALLS_DDL: Final = f"{PROCEDURE} string, {PARAMS} string"
ADVICE: Final = (
    "a job resumes only with the calls and the cluster that it was started with, and a finished one returns its report; other "
    "calls or another cluster need their own --job and OUT"
)


@dataclass(frozen=True, slots=True)
class Fed:
    """A finished feed."""

    path: str
    manifest: Mapping[str, Any]
    seconds: float
    given: FeedInput
    already: bool = False  # by an earlier run; this one has sent nothing

    @property
    def failed(self) -> int:
        """Calls that did not end well."""
        return sum(count for ended, count in self.manifest["statuses"].items() if ended != "ok")

    def report(self) -> DataFrame:
        """Those calls: file, row, key, procedure, params, ended, code, abort_code, detail, txn_id.

        They ended `aborted`, `failed`, `refused` (not executed) or `unknown` (executed or not).
        """
        spark = self.given.open_session()
        if not self.failed:
            return spark.createDataFrame([], _DDL)
        return spark.read.schema(_DDL).parquet(_uri(os.path.join(self.path, REPORT)))


def feed(
    calls: DataFrame | CallFiles,
    send: SendRows,
    *,
    job: str,
    to: str,
    spark: Sessions | None = None,
    rows_per_file: int = ROWS_PER_FILE,
    rows: Rows = "side by side",
    progress: Callable[[RecoveryProgress], None] = lambda _progress: None,
) -> Fed:
    """Sends every row of `calls` (procedure, params) once; the new folder `to` takes the report.

    `send` is `cmdlog.client.feed_sender.Feeder(url)`; it waits as the server asks (Retry-After), and gives up on a server that
    does not answer at all for `give_up_after_s`: the job then ends, and the same call resumes it. With `CallFiles` `spark` is
    the session, or what starts it.

    An interrupted run is resumed by the same call, with the rows of the first run; a finished one returns its report, and
    nothing is sent. What counts as the same: `job`, the server's cluster, which the driver asks for (a finished job returns its
    report even while the server is away), and the content of `calls`. Of files name, size and hash count; of a DataFrame its
    rows, in any order, so they are computed once more. Not noticed is a nondeterministic DataFrame (`rand()`, a UDF marked
    `asNondeterministic`) that gives other rows, as long as its columns and input files are those of the first run. Rows that
    change without Spark's knowledge (`current_timestamp()`, `limit` without order) are refused the second time:
    `spark.read.parquet(f"{to}.unfinished/calls")` gives the rows of the first run, and resumes it.

    Raises: BadCalls, NotEmpty, OtherJob, Locked; Interrupted, SparkFailed; ServerAway, or a TaskError that reports it, when the
    server could not be reached, or rejected the credentials.
    """
    began, files, out = time.monotonic(), RealFiles(), output_path(to)
    given = _given(calls, spark)
    request: dict[str, Any] = {"job": JOB, "name": job}
    check_output(out, given.paths)

    def work(order: Mapping[str, Any], attempt: Attempt) -> dict[str, Any]:
        return feed_file(order, attempt, send)

    def full_request(calls: Mapping[str, Any], folder: str = "") -> dict[str, Any]:
        return _request({**request, "calls": calls}, folder, send, progress)

    with _advised():
        if is_finished(out):
            manifest = finished(files, out, _request_of_finished({**request, "calls": given.request_json()}, out, send))
            if manifest is not None:
                return Fed(out, manifest, time.monotonic() - began, given, already=True)
        with staging(files, to, beside=(CALLS, f"{CALLS}.tmp", MARKS)) as folder:
            manifest, orders = None, None
            if folder.is_begun:
                request = full_request(given.request_json(), folder.folder)
                manifest = folder.decided(request)
                orders = folder.begun(request) if manifest is None else None
            if manifest is None:
                session = given.open_session()
                if orders is None:
                    request = full_request(given.request_json(_fix_rows(given, folder, rows_per_file)))
                    side_by_side = parallelism_of(session) if rows == "side by side" else 1
                    orders = list(_orders(folder, job, request.get("target", ""), side_by_side))
                    folder.begin_job(request, orders)
                manifest = _manifest(request, run_orders(session, folder, orders, work, progress))
            folder.publish(manifest, [(file["from"], file["path"]) for file in manifest["files"]])
    return Fed(out, manifest, time.monotonic() - began, given)


def _request(stated: Mapping[str, Any], folder: str, send: SendRows, tell: Callable[[RecoveryProgress], None]) -> dict[str, Any]:
    """The request, with its server's cluster. The server is asked once all else is known to match what the folder was begun with.

    Raises: OtherRequest; ServerAway.
    """
    if folder:
        _check_recorded(stated, folder)
    began = time.monotonic()
    target = target_of(send, lambda why: tell(RecoveryProgress(0, 0, time.monotonic() - began, waiting=why)))
    return {**stated, **({"target": target} if target else {})}


def _request_of_finished(stated: Mapping[str, Any], out: str, send: SendRows) -> dict[str, Any]:
    """The same for a job that has nothing left to send: another cluster is refused if it answers, else the job's own is assumed.

    Raises: OtherRequest.
    """
    known = _check_recorded(stated, out)
    try:
        target = target_of(hurried() if (hurried := getattr(send, "hurried", None)) is not None else send, lambda _why: None)
    except ServerAway:
        target = str(known.get("target", ""))
    return {**stated, **({"target": target} if target else {})}


def _check_recorded(stated: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """What the folder was begun with, which must equal this request except for its cluster. Raises: OtherRequest."""
    found = output(RealFiles(), folder)
    if (known := recorded(found)) is None:
        return {}
    check_same(found, known, {**stated, **{name: known[name] for name in ("target",) if name in known}})
    return known


def _given(calls: DataFrame | CallFiles, spark: Sessions | None) -> FeedInput:
    if isinstance(calls, CallFiles):
        if spark is None:
            raise TypeError("feed() of CallFiles needs spark=")
        return FeedInput(calls, lambda: opened(spark))
    return FeedInput(calls, lambda: calls.sparkSession)


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Adds the advice of a feed when another request uses this output."""
    try:
        yield
    except OtherRequest as error:
        error.hint = ADVICE
        raise


def _fix_rows(given: FeedInput, folder: Staging, rows_per_file: int) -> DataFrame:
    """Writes the rows, in the order in which they come this time; returns them as they are written."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - executors import this module, too
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    calls = calls_of(given.frame())
    temporary, final = (os.path.join(folder.folder, name) for name in (f"{CALLS}.tmp", CALLS))
    for path in (temporary, final):
        shutil.rmtree(path, ignore_errors=True)
    try:
        with interruptible():
            calls.write.option("maxRecordsPerFile", rows_per_file).parquet(_uri(temporary))
    except (PySparkException, Py4JError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_interruption(error):
            raise KeyboardInterrupt from error
        raise SparkFailed(f"the rows could not be written to {temporary}: {cause_of(error)}") from error
    if isinstance(given.calls, CallFiles):
        given.calls.check_unchanged()
    os.rename(temporary, final)
    return given.open_session().read.schema(_CALLS_DDL).parquet(_uri(final))


def _orders(folder: Staging, job: str, target: str, side_by_side: int) -> Iterator[dict[str, Any]]:
    """One for each range of rows, at least about as many as run in parallel."""
    began_ms = int(time.time() * 1000)
    path = os.path.join(folder.folder, CALLS)
    names = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
    counts = [parquet.read_metadata(os.path.join(path, name)).num_rows for name in names]
    ranges = _ranges(counts, side_by_side)
    for number, (file, first, rows) in enumerate(ranges):
        yield {
            "key": f"c{file:06d}-{first:06d}",
            "partition": number,
            "job": job,
            "target": target,
            "began_ms": began_ms,
            "key_rows": KEY_ROWS,
            "path": os.path.join(path, names[file]),
            "file": file,
            "first": first,
            "calls": rows,
            "bytes": rows,
        }


def _ranges(counts: Sequence[int], side_by_side: int) -> list[tuple[int, int, int]]:
    """(file, first row, rows), of files with so many rows."""
    rows_max = max(RANGE_ROWS_MIN, -(-sum(counts) // side_by_side)) if side_by_side > 1 else max(counts, default=0)
    found = []
    for file, count in enumerate(counts):
        parts = max(1, -(-count // rows_max)) if rows_max else 1
        edges = [count * part // parts for part in range(parts + 1)]
        found += [(file, low, high - low) for low, high in pairwise(edges)]
    return found


def _manifest(request: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row["statuses"])
    files = [{**file, "from": file["path"], "path": f"{REPORT}/{row['key']}.parquet"} for row in rows for file in row["files"]]
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
