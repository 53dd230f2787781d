"""A process that runs queries, one after the other; its arguments are the descriptor of its socket and MEMORY_BYTES_MAX.

One rule: whatever a statement does, this process is all that it can harm. SQLite's memory is limited, all memory is limited a bit
above that, a timer of the kernel ends the process when a step of SQLite does not come back, and the kernel's out-of-memory killer
takes it first.

An encoder that finds no memory ends its process without a word (SIGSEGV). So a result's limit counts the bytes of its JSON, and
they are made in small pieces, each counted before the next one: see `EncodedRows`.

Both directions carry frames: a length, then JSON of a request (`encode_request`); the kind of an answer, its length, its body. A
request of no length cancels the query that runs; between two queries it means nothing. The first byte says that it is ready.
"""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from math import isfinite
from pathlib import Path
from typing import Any, Final

import apsw
import orjson

from cmdlog.node.outcome import NotReady
from cmdlog.node.queries.query import (
    ESCAPED_BYTES_MAX,
    QueryLimit,
    QueryLimits,
    QueryRefused,
    out_of_memory,
    refuse_infinity,
    run_query,
)
from cmdlog.procedure_calls import QueryParameters
from cmdlog.signal_handlers import STOPS, ignore
from cmdlog.wal.ids import txn_millis

LENGTH: Final = struct.Struct("<I")
ANSWER: Final = struct.Struct("<BI")
READY: Final = b"\1"
GRACE_S: Final = 1.0  # beyond the query's own time before the kernel ends the process
SPARE_BYTES: Final = 64 << 20  # of memory beside SQLite's and the result's
RESULT_FACTOR: Final = (
    8  # memory of a result (a row's values, up to 4 bytes a character; its JSON twice; the encoder) / its bytes
)
ENCODED_AT_ONCE_BYTES: Final = 256 << 10  # of JSON that rows make at most
NUMBER_BYTES_MAX: Final = 32  # of a number, or around a text, with the comma
PIECE_CHARS: Final = 3 << 14  # of a text or of bytes, encoded at once; three bytes make four characters of base64
NICENESS: Final = 5  # calls go first
KILLED_FIRST: Final = "900"  # oom_score_adj; the node and the sites have 0


class AnswerKind(IntEnum):
    """What an answer is."""

    RESULT = 0  # JSON, ready to be sent
    REFUSED = 1
    LIMIT = 2
    NOT_READY = 3


def encode_request(
    paths: Mapping[int, str], sql: str, params: QueryParameters | orjson.Fragment, limits: QueryLimits, *, dated: bool = False
) -> bytes:
    """A request as its JSON."""
    limited = [limits.rows_max, limits.bytes_max, limits.timeout_s, limits.wal_bytes_max]
    return orjson.dumps(
        [list(paths.items()), sql, params if isinstance(params, dict | orjson.Fragment) else list(params), dated, *limited]
    )


class EncodedRows:
    """Rows as JSON, each made when it is read; bytes are base64. See `RowStore`."""

    def __init__(self) -> None:
        self.encoded = bytearray()  # with a comma after each row
        self.rows = 0
        self._short: list[Sequence[Any]] = []  # rows that are not encoded yet
        self._short_bytes = 0  # that they have as JSON, at most

    def add_row(self, row: Sequence[Any], bytes_max: int) -> bool:
        """See `RowStore`. Raises: MemoryError, QueryRefused."""
        length = 0
        for value in row:
            kind = type(value)
            if kind is str or kind is bytes:
                length += len(value)
            elif kind is float and not isfinite(value):
                refuse_infinity()
        self.rows += 1
        most = ESCAPED_BYTES_MAX * length + NUMBER_BYTES_MAX * len(row)
        if most > ENCODED_AT_ONCE_BYTES:
            return self.end_rows(bytes_max) and self._add_pieces(row, bytes_max)
        self._short.append(row)
        self._short_bytes += most
        return self._short_bytes <= ENCODED_AT_ONCE_BYTES or self.end_rows(bytes_max)

    def end_rows(self, bytes_max: int) -> bool:
        """See `RowStore`."""
        if self._short:
            self.encoded += orjson.dumps(self._short, default=_base64)[1:-1]
            self.encoded += b","
            self._short.clear()
            self._short_bytes = 0
        return len(self.encoded) <= bytes_max

    def _add_pieces(self, row: Sequence[Any], bytes_max: int) -> bool:
        encoded = self.encoded
        for piece in _pieces(row):
            encoded += piece
            if len(encoded) > bytes_max:
                return False
        return True


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _pieces(row: Sequence[Any]) -> Iterator[bytes]:
    """The JSON of a row of any length, and a comma."""
    between = b"["
    for value in row:
        yield between
        between = b","
        if type(value) not in (str, bytes):
            yield orjson.dumps(value)
            continue
        yield b'"'
        for at in range(0, len(value), PIECE_CHARS):
            piece = value[at : at + PIECE_CHARS]
            yield base64.b64encode(piece) if type(piece) is bytes else orjson.dumps(piece)[1:-1]
        yield b'"'
    yield b"],"


def encode_result(
    columns: Sequence[str], rows: EncodedRows, as_of: Mapping[int, int], *, dated: bool = False
) -> list[bytes | memoryview]:
    """The parts of the answer's body, as callers get it: transaction ids are text; `dated`: with the oldest state's time."""
    dates = state_dates(as_of)
    if not dated:
        del dates["as_of_time"]
    return [b'{"columns":%b,"rows":[' % orjson.dumps(columns), memoryview(rows.encoded)[:-1], b"]," + orjson.dumps(dates)[1:]]


def state_dates(as_of: Mapping[int, int]) -> dict[str, Any]:
    """Of the states that were read: the transaction up to which each of them holds all, and the time of the oldest one."""
    oldest = datetime.fromtimestamp(txn_millis(min(as_of.values(), default=0)) / 1000, UTC)
    return {
        "as_of": {str(partition): str(txn_id) for partition, txn_id in as_of.items()},
        "as_of_time": oldest.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Raises: EOFError."""
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class QueryWorker:
    """The loop of the process."""

    def __init__(self, sock: socket.socket, *, memory_bytes_max: int) -> None:
        self._socket = sock
        self._memory_bytes_max = memory_bytes_max
        self._base_bytes = _address_space_bytes()
        self._address_limits = resource.getrlimit(resource.RLIMIT_AS)  # soft and hard, as the node has them
        self._word = select.poll()
        self._word.register(sock, select.POLLIN)

    def run(self) -> None:
        """Serves until the node closes the socket."""
        self._socket.sendall(READY)
        while True:
            (length,) = LENGTH.unpack(receive_exactly(self._socket, LENGTH.size))
            if length:
                kind, parts = self._answer(receive_exactly(self._socket, length))
                self._socket.sendall(ANSWER.pack(kind, sum(map(len, parts))))
                for part in parts:
                    self._socket.sendall(part)

    def _answer(self, request: bytes) -> tuple[AnswerKind, list[bytes | memoryview]]:
        paths, sql, params, dated, *limited = orjson.loads(request)
        limits = QueryLimits(*limited)
        ceiling = self._base_bytes + self._memory_bytes_max + SPARE_BYTES + RESULT_FACTOR * limits.bytes_max
        soft, hard = self._address_limits
        resource.setrlimit(resource.RLIMIT_AS, (ceiling if soft == resource.RLIM_INFINITY else min(soft, ceiling), hard))
        signal.setitimer(signal.ITIMER_REAL, limits.timeout_s + GRACE_S)  # SIGALRM's default action ends the process
        try:
            rows = EncodedRows()
            result = run_query(dict(paths), sql, params, limits, cancelled=self._has_word, store=rows)
            return AnswerKind.RESULT, encode_result(result.columns, rows, result.as_of, dated=dated)
        except MemoryError:
            return AnswerKind.LIMIT, [str(out_of_memory()).encode()]
        except QueryLimit as error:
            return AnswerKind.LIMIT, [str(error).encode()]
        except QueryRefused as error:
            return AnswerKind.REFUSED, [str(error).encode()]
        except NotReady as error:
            return AnswerKind.NOT_READY, [str(error).encode()]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _has_word(self) -> bool:
        """The node cancels, or is gone."""
        return bool(self._word.poll(0))


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    """Entry point."""
    ignore(*STOPS)  # the node decides when its processes end
    sock = socket.socket(fileno=int(sys.argv[1]))
    memory_bytes_max = int(sys.argv[2])
    apsw.hard_heap_limit(memory_bytes_max)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what a statement read must not get into a core dump
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # a container may forbid it
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    with contextlib.suppress(EOFError, ConnectionError):  # the node is gone
        QueryWorker(sock, memory_bytes_max=memory_bytes_max).run()
