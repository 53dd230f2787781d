"""What an executor does for a feed: sends the calls of one file, and records those that did not end well.

One rule: a row is named by job, file and place in it, and the file never changes: every attempt sends the same call again.
An order is a range of a file's rows; what an earlier attempt at it had answers for is not sent again. It is sent in parts, and
the keys of a part have the time at which it was first sent (`replay.spark.feeding.marks`).

A server that cannot be reached, or rejects the credentials, ends the job rather than the attempt: the sender already waits long
enough, and Spark would only wait four times as long.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any, Final, Protocol

import orjson
import pyarrow
from pyarrow import parquet

from cmdlog.errors import CmdlogError, Forbidden, OutcomeUnknown, Unauthenticated, Unavailable
from replay.errors import ReplayError
from replay.spark.feeding.marks import Marks
from replay.spark.jobs.task_attempt import Attempt

PROCEDURE: Final = "procedure"
PARAMS: Final = "params"
REPORT: Final = pyarrow.schema(
    [
        ("file", pyarrow.int32()),
        ("row", pyarrow.int64()),
        ("key", pyarrow.string()),
        (PROCEDURE, pyarrow.string()),
        (PARAMS, pyarrow.string()),
        ("ended", pyarrow.string()),  # aborted, failed, refused, unknown
        ("code", pyarrow.string()),
        ("abort_code", pyarrow.string()),
        ("detail", pyarrow.string()),
        ("txn_id", pyarrow.int64()),
    ]
)
NOT_SENT: Final = {"key": "", "ended": "refused", "code": "invalid_parameters", "abort_code": "", "txn_id": 0}
_LONG: Final = re.compile(r"\d[\d.]{15,}|\d[eE]")  # a number that a float may not hold; what is shorter than that it does
Row = tuple[str, Mapping[str, Any], str]


class SendRows(Protocol):
    """Sends calls to a service (`cmdlog.client.feed_sender.Feeder` is one): an answer for each row, in order.

    `began_ms` is the time in the rows' keys. One with a method `telling(tell)` gives a sender that also reports why it waits. One
    with a method `target()` names the cluster that the calls are for; its `url` is named in errors. One with a method `hurried()`
    gives a sender that waits for a second at most.
    """

    def __call__(self, rows: Iterable[Row], *, began_ms: int) -> Iterator[Mapping[str, Any]]: ...


class ServerAway(ReplayError):
    """The service did not answer for too long, or accepts no calls from us."""

    hint = (
        "once the server accepts calls again, run the same command to resume; --give-up-after-s (in Python "
        "Feeder(give_up_after_s=…)) waits longer for an answer"
    )


class OtherServer(ReplayError):
    """The server that answers belongs to another cluster than the one that the job was begun with."""

    hint = "calls for another cluster need their own --job and OUT"


@contextlib.contextmanager
def serving(send: SendRows) -> Iterator[None]:
    """Turns errors of a server that accepts no calls into ServerAway. Raises: ServerAway."""
    try:
        yield
    except (Unavailable, OutcomeUnknown, Unauthenticated, Forbidden) as error:
        raise ServerAway(f"{_where(send)} accepts no calls: {error}") from error


def target_of(send: SendRows, tell: Callable[[str], None]) -> str:
    """The cluster that the calls are for; "" where the sender does not say. Raises: ServerAway."""
    if (telling := getattr(send, "telling", None)) is not None:
        send = telling(tell)
    if (target := getattr(send, "target", None)) is None:
        return ""
    try:
        return str(target())
    except CmdlogError as error:
        raise ServerAway(f"{_where(send)} does not name its cluster: {error}") from error


def _where(send: SendRows) -> str:
    url = getattr(send, "url", "")
    where = url if isinstance(url, str) else ", ".join(url)
    return f"the server at {where}" if where else "the server"


def feed_file(order: Mapping[str, Any], attempt: Attempt, send: SendRows) -> dict[str, Any]:
    """Does the work of one order. Raises: ServerAway, OtherServer; what else `send` raises: then Spark tries again."""
    if why := attempt.given_up():
        raise ServerAway(why)
    try:
        known = order.get("target", "")
        if known and (found := target_of(send, attempt.waits)) != known:
            raise OtherServer(f"{_where(send)} belongs to {found}, and the job was started with {known}")
        return _feed_file(order, attempt, send)
    except ServerAway as error:
        attempt.give_up(str(error.args[0]))
        raise


def _feed_file(order: Mapping[str, Any], attempt: Attempt, send: SendRows) -> dict[str, Any]:
    if (telling := getattr(send, "telling", None)) is not None:
        send = telling(attempt.waits)
    marks = Marks(attempt.staging, attempt.key, os.path.basename(attempt.folder))
    try:
        with serving(send):
            for _ in _answered(order, marks, send):
                attempt.count_calls(marks.upto)
        marks.write()
        files = _report(marks, attempt)
    finally:
        marks.close()
    return {"partition": order["partition"], "calls": marks.upto, "statuses": dict(sorted(marks.ended.items())), "files": files}


def _answered(order: Mapping[str, Any], marks: Marks, send: SendRows) -> Iterator[None]:
    """Sends the rows that have no mark, and adds each to the marks when it and all before it are answered."""
    waiting: deque[tuple[int, str, str, str]] = deque()  # rows without an answer: number, procedure, params, why it is no call

    def calls(rows: Iterable[tuple[int, str | None, str | None]]) -> Iterator[Row]:
        for at, procedure, params in rows:
            value = call_of(procedure, params)
            if isinstance(value, str) or not procedure:
                waiting.append((at, procedure or "", params or "", str(value)))
                continue
            waiting.append((at, procedure, params or "", ""))
            yield procedure, value, f"{order['job']}/{order['file']}/{at}"

    def add(answer: Mapping[str, Any]) -> None:
        at, procedure, params, _ = waiting.popleft()
        about = {name: answer[name] for name in ("key", "ended", "code", "abort_code", "detail", "txn_id")}
        row = {"file": order["file"], "row": at, PROCEDURE: procedure, PARAMS: params, **about}
        marks.add(str(answer["ended"]), None if answer["ended"] == "ok" else row)

    def add_refused() -> None:
        while waiting and (why := waiting[0][3]):
            add({**NOT_SENT, "detail": why})

    rest = _read(order, marks.upto)
    for low, high, key_ms in _parts(order, marks):
        for answer in send(calls(islice(rest, high - low)), began_ms=key_ms):
            add_refused()
            add(answer)
            yield
        add_refused()


def _parts(order: Mapping[str, Any], marks: Marks) -> Iterator[tuple[int, int, int]]:
    """[low, high) in the order's rows that have no mark, and the time in their keys; a part ends before the next one begins.

    An order of a version that gave all rows the job's time keeps it: another time would make other keys.
    """
    begin, end = marks.upto, int(order["calls"])
    key_rows = int(order.get("key_rows", 0))
    if not key_rows:
        yield begin, end, int(order["began_ms"])
        return
    while begin < end:
        first = begin // key_rows * key_rows
        stop = min(first + key_rows, end)
        yield begin, stop, marks.fix_key_time(first, int(time.time() * 1000))
        begin = stop


def _report(marks: Marks, attempt: Attempt) -> list[dict[str, Any]]:
    """Writes the rows that did not end well, if there are any."""
    path, rows = os.path.join(attempt.folder, "report.parquet"), 0
    writer: Any = None
    for part in marks.report():
        writer = writer or parquet.ParquetWriter(path, REPORT)
        writer.write_batch(pyarrow.RecordBatch.from_pylist(part, REPORT))
        rows += len(part)
    if writer is None:
        return []
    writer.close()
    return [{"kind": "report", "rows": rows, **attempt.sealed(path)}]


def _read(order: Mapping[str, Any], done: int) -> Iterator[tuple[int, str | None, str | None]]:
    """Number in the file, procedure and params, of the order's rows after those that are done."""
    at, end = 0, int(order["first"]) + int(order["calls"])
    begin = int(order["first"]) + done
    with parquet.ParquetFile(order["path"]) as file:
        for batch in file.iter_batches(columns=[PROCEDURE, PARAMS]):
            wanted = batch.slice(max(0, begin - at), max(0, end - max(begin, at)))
            columns = (column.to_pylist() for column in wanted.columns)
            yield from ((max(begin, at) + n, *row) for n, row in enumerate(zip(*columns, strict=True)))
            at += batch.num_rows
            if at >= end:
                return


def call_of(procedure: str | None, params: str | None) -> dict[str, Any] | str:
    """The params of a row; or why it is not a call. Numbers keep exactly the written value."""
    if not procedure:
        return f"the column {PROCEDURE} is {'NULL' if procedure is None else 'empty'}"
    if params is None:
        return f"the column {PARAMS} is NULL; a call without parameters has {{}}"
    try:
        value = json.loads(params, parse_float=_exact, parse_constant=_exact) if _LONG.search(params) else orjson.loads(params)
    except (orjson.JSONDecodeError, RecursionError, ValueError) as error:
        return f"the column {PARAMS} is not a JSON value that can be sent: {error}"
    return value if isinstance(value, dict) else f"the column {PARAMS} is not a JSON object"


def _exact(text: str) -> float:
    """Raises: ValueError for a number that a float would change."""
    value = float(text)
    if not math.isfinite(value) or Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"{text} is not a number that a float can hold; write it as a string")
    return value
