"""A job of independent tasks on Spark: hands out orders, shows their progress, collects one row of each.

One rule: tasks answer with small rows, never with data, and the rows alone decide which files count. Order, retries and where a
task runs are Spark's business.

The longest task comes first, since Spark starts tasks in the order of their numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Union

import orjson

from cmdlog.signal_handlers import handled
from cmdlog.wal.files import Files, RealFiles
from replay.errors import Divergence, DivergencePlace, Interrupted, Poison, RemoteError, ReplayError
from replay.recover.execute import terminable
from replay.recover.progress import RecoveryProgress
from replay.results import WorkPace
from replay.spark.base.executor_zip import ship
from replay.spark.base.version_check import versions
from replay.spark.jobs.fetched_inputs import inputs, output_path
from replay.spark.jobs.staging import Staging, check_output, finished, staging
from replay.spark.jobs.task_attempt import StalledTasks, Work, carry_out

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW: Final = "row string"
LOOK_EVERY_S: Final = 0.5
CANCEL_S_MAX: Final = 10.0  # Spark kills the Python workers of a cancelled job within three
JAVA_CAUSES: Final = 2  # what was done, and what was wrong with it; those below repeat it in other words
HINT: Final = "hint: "
SPARK_CONTEXT: Final = "pyspark.core.context"  # the module whose handler of SIGINT a session installs
_LAST_LINE: Final = re.compile(r"[A-Za-z_][\w.]*(:|$)")  # of a traceback: the others are indented
_PLACES: Final = {"Divergence": Divergence, "Poison": Poison}

Sessions = Union["SparkSession", Callable[[], "SparkSession"]]  # the latter starts Spark, when it is needed
Order = Mapping[str, Any]  # key, partition, calls, bytes, and what the work needs; JSON
Tell = Callable[[RecoveryProgress], None]


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job whose output is complete."""

    path: str
    manifest: Mapping[str, Any]
    seconds: float
    already: bool = False  # by an earlier run; this one has written nothing


Done = TypeVar("Done", bound=FinishedJob)


class SparkFailed(ReplayError):
    """Spark gave a task up: the machine failed as often as tasks are tried, or an executor was lost too often."""

    hint = "finished tasks are kept: run the same job again to resume, once the cause is removed"


class TaskError(RemoteError):
    """An error that a task reported."""

    def __init__(self, told: dict[str, Any]) -> None:
        """`told` is the error's `to_json`, and the `task`, if one is to be named."""
        super().__init__({**told, "message": f"{told['message']}; task {told['task']}"} if "task" in told else told)


def opened(spark: Sessions) -> SparkSession:
    """The session, started if need be. Raises: what starting it raises."""
    return spark() if callable(spark) else spark


def run_job(
    kind: type[Done],
    spark: Sessions,
    to: str,
    request: Mapping[str, Any],
    plan: Callable[[Files, Mapping[str, Any]], Iterable[dict[str, Any]]],
    *,
    work: Work,
    manifest_of: Callable[[Sequence[Order], Sequence[Mapping[str, Any]]], dict[str, Any]],
    moves_of: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]],
    tell: Tell,
) -> Done:
    """Makes the output `to`: orders of `plan`, or those of an unfinished run, a row of each, and the manifest of these.

    Spark is started after planning, so that bad input is reported at once. Raises: what folder, `plan` and `run_orders` raise.
    """
    began, files, out = time.monotonic(), RealFiles(), output_path(to)
    check_output(out, request["paths"])
    if (manifest := finished(files, out, request)) is not None:
        return kind(out, manifest, time.monotonic() - began, already=True)
    with staging(files, to) as folder:
        # Where an earlier run ended: it had decided its manifest, it had its orders, or it had nothing.
        manifest = folder.decided(request)
        if manifest is None:
            orders = folder.begun(request)
            if orders is None:
                with inputs(request["paths"]) as given:
                    orders = given.stamp(plan(given.files, {**request, "paths": given.directories}))
                session = opened(spark)
                folder.begin_job(request, orders)
            else:
                session = opened(spark)
            with folder.planned_anew():
                manifest = manifest_of(orders, run_orders(session, folder, orders, work, tell))
        folder.publish(manifest, moves_of(manifest))
    return kind(folder.out, manifest, time.monotonic() - began)


def run_orders(spark: SparkSession, folder: Staging, orders: Sequence[Order], work: Work, tell: Tell) -> list[dict[str, Any]]:
    """Carries out the orders that have no row yet; one row of each order, in their order.

    Raises: Divergence or Poison, of the first transaction that ended so; TaskError; SparkFailed; Interrupted.
    """
    done = folder.rows()
    missing = sorted((order for order in orders if order["key"] not in done), key=lambda order: -int(order["bytes"]))
    meter = _Meter(folder, orders, done, tell)
    if missing:
        with terminable(), interruptible(), meter, _job_group(spark) as cancel:
            answers = _collect(spark, folder, missing, work, cancel)
        _raise_errors([{**answer["error"], "task": answer["key"]} for answer in answers if "error" in answer])
        done |= {answer["key"]: answer for answer in answers}
    meter.end()
    return [done[order["key"]] for order in orders]


def _collect(
    spark: SparkSession, folder: Staging, orders: Sequence[Order], work: Work, cancel: Callable[[], None]
) -> list[dict[str, Any]]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - an executor imports this module, too
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    ship(spark)
    stamped = [orjson.dumps({**order, "staging": folder.folder, "versions": versions()}) for order in orders]
    count = len(stamped)
    try:
        rows = spark.range(0, count, 1, count).mapInArrow(_mapper(stamped, work), ROW).collect()
    except BaseException as error:
        cancel()
        if is_interruption(error):
            raise Interrupted(f"the job was interrupted; {folder.folder} keeps the finished tasks") from error
        if isinstance(error, PySparkException | Py4JError):
            raise SparkFailed(cause_of(error)) from error
        raise
    return [orjson.loads(row[0]) for row in rows]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Until its end Ctrl-C only raises KeyboardInterrupt, on which py4j closes the connection; a program's own handler stays.

    PySpark's handler first asks Spark to cancel all jobs. While the main thread waits for an answer, that request meets the read
    on the same connection, and py4j prints a traceback. What a job has to cancel it cancels itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or getattr(signal.getsignal(signal.SIGINT), "__module__", "") != SPARK_CONTEXT:
        yield
        return
    with handled(_interrupt, signal.SIGINT):
        yield


def is_interruption(error: BaseException | None) -> bool:
    """Whether it is one, or came while one left PySpark, whose next question then met the end of the connection."""
    while error is not None and not isinstance(error, KeyboardInterrupt | Interrupted):
        error = error.__context__
    return error is not None


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _mapper(orders: Sequence[bytes], work: Work) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What the executors run: the orders and a function of an importable module travel, nothing else."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow  # noqa: PLC0415 - of the executor

        schema = pyarrow.schema([("row", pyarrow.string())])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                row = carry_out(orjson.loads(orders[number]), work)
                yield pyarrow.record_batch([pyarrow.array([row], pyarrow.string())], schema=schema)

    return run


@contextlib.contextmanager
def _job_group(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Gives what cancels the job; nothing over Spark Connect, where a query ends with its client."""
    try:
        context: Any = spark.sparkContext
    except Exception:  # noqa: BLE001 - of Spark Connect, which has none; its errors differ by version
        yield lambda: None
        return
    group = f"cmdlog-{os.urandom(6).hex()}"
    context.setJobGroup(group, "cmdlog", interruptOnCancel=True)

    def cancel() -> None:
        context.cancelJobGroup(group)
        deadline, tracker = time.monotonic() + CANCEL_S_MAX, context.statusTracker()
        while time.monotonic() < deadline and tracker.getActiveJobsIds():
            time.sleep(0.05)

    try:
        yield cancel
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)


def cause_of(error: Exception) -> str:
    """The task's own message, if there is one: the last line of the Python traceback in Spark's message."""
    lines = str(error).splitlines()
    at = next((n for n, line in enumerate(lines) if line.lstrip().startswith("Traceback (most recent call last)")), None)
    if at is None:
        java = [line.partition(": ")[2] for line in lines if line.startswith((": ", "Caused by: "))]  # "class: message" of each
        if java:
            return ": ".join(line.partition(": ")[2].strip() or line for line in java[:JAVA_CAUSES])
        return next((line.strip() for line in lines if line.strip()), type(error).__name__)
    python = itertools.takewhile(lambda line: not line.startswith("\tat ") and "SQLSTATE:" not in line, lines[at + 1 :])
    said = [line.strip() for line in python if _LAST_LINE.match(line)]
    if len(said) > 1 and said[-1].startswith(HINT):  # a note below the error (`OperatorError`)
        said = [f"{said[-2]} ({said[-1].removeprefix(HINT)})"]
    return f"a task failed too often: {said[-1] if said else lines[at]}"


def _raise_errors(errors: Sequence[dict[str, Any]]) -> None:
    """Raises: the one of the lowest transaction, if any names one; else the first."""
    places = sorted((error for error in errors if "place" in error), key=lambda error: int(error["place"]["txn_id"]))
    stops = [_PLACES[error["kind"]](DivergencePlace.from_json(error["place"])) for error in places]
    for stop in stops[:1]:
        raise type(stop)(stop.place, stops[1:])
    for error in errors[:1]:
        raise TaskError(error)


class _Meter:
    """Reads the tasks' progress in its own thread while the driver waits for Spark."""

    def __init__(self, folder: Staging, orders: Sequence[Order], done: Mapping[str, Any], tell: Tell) -> None:
        self._folder, self._tell, self._began = folder, tell, time.monotonic()
        self._orders = {str(order["key"]): order for order in orders}
        self._done = frozenset(done)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self) -> None:
        """All is done."""
        self._show({key: int(order["calls"]) for key, order in self._orders.items()})

    def _watch(self) -> None:
        stalled = StalledTasks()
        while not self._stop.wait(LOOK_EVERY_S):
            whole = {key: int(self._orders[key]["calls"]) for key in {*self._done, *self._folder.rows()} & self._orders.keys()}
            told = {key: of for key, of in self._folder.progress().items() if key not in whole}
            self._show({key: of.calls for key, of in told.items()} | whole, stalled.find(told))

    def _show(self, calls: Mapping[str, int], waiting: str = "") -> None:
        elapsed = time.monotonic() - self._began
        paces = {}
        for key, order in self._orders.items():
            total = int(order["calls"])
            before = total if key in self._done else 0
            paces[int(order["partition"])] = WorkPace(min(total, calls.get(key, 0)), total, elapsed, before)
        total = sum(pace.total for pace in paces.values())
        done, before = (sum(pace.done for pace in paces.values()), sum(pace.before for pace in paces.values()))
        self._tell(RecoveryProgress(done, total, elapsed, before, paces, waiting))
