"""What an executor does for a feed: sends the calls of one file, and writes down those that did not end well.

One rule: a row is named by job, file and place in it, and the file never changes: whoever sends it sends the same call again.

A server that cannot be reached, or lets nobody in, ends the job rather than the attempt: whoever sends waits long enough by
itself, and Spark would only wait four times as long.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, Protocol

import orjson
import pyarrow
from pyarrow import parquet

from cmdlog.errors import CmdlogError, Forbidden, OutcomeUnknown, Unauthenticated, Unavailable
from replay.errors import ReplayError
from replay.spark.attempt import Attempt

PROCEDURE: Final = "procedure"
PARAMS: Final = "params"
REPORT: Final = pyarrow.schema(
    [
        ("file", pyarrow.int32()),
        ("row", pyarrow.int64()),
        ("key", pyarrow.string()),
        (PROCEDURE, pyarrow.string()),
        (PARAMS, pyarrow.string()),
        ("ended", pyarrow.string()),  # aborted, failed, refused
        ("code", pyarrow.string()),
        ("abort_code", pyarrow.string()),
        ("detail", pyarrow.string()),
        ("txn_id", pyarrow.int64()),
    ]
)
REPORT_ROWS: Final = 4096  # written at a time
NOT_SENT: Final = {"key": "", "ended": "refused", "code": "invalid_parameters", "abort_code": "", "txn_id": 0}
_LONG: Final = re.compile(r"\d[\d.]{15,}|\d[eE]")  # a number that a float may not hold; what is shorter than that it does
Row = tuple[str, Mapping[str, Any], str]


class Send(Protocol):
    """What brings calls to a service (`cmdlog.client.feeder.Feeder` is one): an answer for each row, in order.

    One with a method `telling(tell)` gives a sender that also tells why it waits. One with a method `target()` says whom the
    calls are for; its `url` is told in errors.
    """

    def __call__(self, rows: Iterable[Row], *, began_ms: int) -> Iterator[Mapping[str, Any]]: ...


class ServerAway(ReplayError):
    """The service did not answer for too long, or takes no calls from us."""

    hint = (
        "when it takes calls again, the same command goes on where this one ended; --give-up-after-s, of Python "
        "Feeder(give_up_after_s=…), waits longer for an answer"
    )


class OtherServer(ReplayError):
    """Another cluster answers than the one that the job was begun with."""

    hint = "calls for another cluster need a --job and an OUT of their own"


@contextlib.contextmanager
def serving(send: Send) -> Iterator[None]:
    """Around calls. Raises: ServerAway."""
    try:
        yield
    except (Unavailable, OutcomeUnknown, Unauthenticated, Forbidden) as error:
        raise ServerAway(f"{_where(send)} takes no calls: {error}") from error


def target_of(send: Send, tell: Callable[[str], None]) -> str:
    """Whom the calls are for; "" where the sender does not say. Raises: ServerAway."""
    if (telling := getattr(send, "telling", None)) is not None:
        send = telling(tell)
    if (target := getattr(send, "target", None)) is None:
        return ""
    try:
        return str(target())
    except CmdlogError as error:
        raise ServerAway(f"{_where(send)} does not say what it is: {error}") from error


def _where(send: Send) -> str:
    url = getattr(send, "url", "")
    return f"the server at {url}" if url else "the server"


def feed_file(order: Mapping[str, Any], attempt: Attempt, send: Send) -> dict[str, Any]:
    """The work of one order. Raises: ServerAway, OtherServer; what else `send` raises: then Spark tries again."""
    if why := attempt.given_up():
        raise ServerAway(why)
    try:
        known = order.get("target", "")
        if known and (found := target_of(send, attempt.waits)) != known:
            raise OtherServer(f"{_where(send)} is of {found}, and the job was begun with {known}")
        return _feed_file(order, attempt, send)
    except ServerAway as error:
        attempt.give_up(str(error.args[0]))
        raise


def _feed_file(order: Mapping[str, Any], attempt: Attempt, send: Send) -> dict[str, Any]:
    report = _Report(os.path.join(attempt.folder, "report.parquet"), int(order["partition"]))
    ended: Counter[str] = Counter()
    if (telling := getattr(send, "telling", None)) is not None:
        send = telling(attempt.waits)
    waiting: deque[tuple[int, str, str]] = deque()  # rows that were given to `send` and have no answer
    with report, serving(send):

        def rows() -> Iterator[Row]:
            for at, (procedure, params) in enumerate(_read(order["path"])):
                value = call_of(procedure, params)
                if isinstance(value, str) or not procedure:
                    ended["refused"] += 1
                    report.add(at, procedure or "", params or "", {**NOT_SENT, "detail": value})
                    continue
                waiting.append((at, procedure, params or ""))
                yield procedure, value, f"{order['job']}/{order['partition']}/{at}"

        for answer in send(rows(), began_ms=int(order["began_ms"])):
            at, procedure, params = waiting.popleft()
            ended[str(answer["ended"])] += 1
            if answer["ended"] != "ok":
                report.add(at, procedure, params, answer)
            attempt.note(ended.total())
    files = [{"kind": "report", "rows": report.rows, **attempt.sealed(report.path)}] if report.rows else []
    return {"partition": order["partition"], "calls": ended.total(), "statuses": dict(sorted(ended.items())), "files": files}


def _read(path: str) -> Iterator[tuple[str | None, str | None]]:
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[PROCEDURE, PARAMS]):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def call_of(procedure: str | None, params: str | None) -> dict[str, Any] | str:
    """The params of a row; or why it is no call. A number is exactly the one that is written there."""
    if not procedure:
        return f"the column {PROCEDURE} is {'NULL' if procedure is None else 'empty'}"
    if params is None:
        return f"the column {PARAMS} is NULL; a call without parameters has {{}}"
    try:
        value = json.loads(params, parse_float=_exact, parse_constant=_exact) if _LONG.search(params) else orjson.loads(params)
    except (orjson.JSONDecodeError, RecursionError, ValueError) as error:
        return f"the column {PARAMS} is no JSON value that can be sent: {error}"
    return value if isinstance(value, dict) else f"the column {PARAMS} is no JSON object"


def _exact(text: str) -> float:
    """Raises: ValueError for a number that would be another one as a float."""
    value = float(text)
    if not math.isfinite(value) or Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"{text} is no number that a float holds; write it as a string")
    return value


class _Report:
    """The rows that did not end well, in the order of their answers."""

    def __init__(self, path: str, file: int) -> None:
        self.path, self.rows = path, 0
        self._file, self._waiting = file, list[dict[str, Any]]()
        self._writer: Any = None

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, row: int, procedure: str, params: str, answer: Mapping[str, Any]) -> None:
        about = {name: answer[name] for name in ("key", "ended", "code", "abort_code", "detail", "txn_id")}
        self._waiting.append({"file": self._file, "row": row, PROCEDURE: procedure, PARAMS: params, **about})
        self.rows += 1
        if len(self._waiting) >= REPORT_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer = self._writer or parquet.ParquetWriter(self.path, REPORT)
            self._writer.write_batch(pyarrow.RecordBatch.from_pylist(self._waiting, REPORT))
            self._waiting = []
