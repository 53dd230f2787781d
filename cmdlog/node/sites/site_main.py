"""A site in a process of its own; its arguments are the descriptors of its socket and of its progress page.

One rule: it speaks only over the socket it was given and ends when its node is gone, even in the middle of a call that never
returns (`cmdlog.child_process`), so it cannot outlive the node and write beside a successor; the lock beside each state file
makes sure.

The code it runs is the bundle that the log names, not what lies on the import path: what works here works in replay. A fault of
the environment (disk full, out of memory, an I/O error, an interrupt) is never an outcome: the site says so and ends; the node
restores it and sends the batch again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import sys
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final, NoReturn

import orjson

from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.node.sites.frames import Frame, FrameKind, FrameReader, encode_applied, encode_frame, encode_read_answer
from cmdlog.node.sites.site_executor import TABLES_CHANGE, Site, SitePlan
from cmdlog.node.sites.site_progress import BUSY, HANDLED, INDEX, NO_CALL, PARTITION, POSITION, PROGRESS_BYTES, READ, STEPS
from cmdlog.signal_handlers import STOPS, ignore
from cmdlog.wal.errors import Locked
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, decode_record
from cmdlog.wal.system.line_queue import end_output, queue_output
from procedures import Database
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import BundleError, EnvironmentFault, ProceduresError
from procedures.execution.call_settings import standard_settings
from procedures.execution.process_guard import end_children
from replay.engine import CatalogMissing, Catalogs
from replay.state.state_lock import StateLock
from snapshot.capture.capture import Wish

READ_BYTES: Final = 1 << 16  # a longer buffer comes from the system each time, which takes longer than the call


def load_alone(bundle: Bundle, own_folders: Collection[str], empty: str) -> Database:
    """New code, loaded as a recovery will load it: from the log alone.

    What the log does not hold is missed before the first call is logged, not when a replay needs it. So the process is in an
    empty folder while the code is imported, and the program's own folders are not searched. `own_folders`: real paths; `empty`:
    a folder. Raises: BundleError.
    """
    with _inside(empty), _without(own_folders), standard_settings():
        return load_bundle(bundle)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """The folder that the process was in may be gone, or unreadable: it has no path then."""
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _without(folders: Collection[str]) -> Iterator[None]:
    """What the code adds to the path meanwhile stays."""
    left_out = [folder for folder in sys.path if os.path.realpath(folder) in folders]
    sys.path[:] = [folder for folder in sys.path if folder not in left_out]
    try:
        yield
    finally:
        sys.path[:0] = left_out


class SiteProcess:
    """The loop around a `Site`."""

    def __init__(self, sock: socket.socket, progress: memoryview) -> None:
        self._socket = sock
        self._progress = progress  # [512] uint64, shared with the node
        self._reader = FrameReader()
        self._locks: list[StateLock] = []
        self._site: Site | None = None
        self._tried: dict[str, Database] = {}  # by hash of its bundle: code that was loaded before the hello

    def run(self) -> None:
        """Serves until the node stops it or goes away."""
        while True:
            site = self._site
            if (
                site is not None
                and (site.captures or site.gates)
                and not select.select([self._socket], (), (), site.idle_pause_s)[0]
            ):
                site.empty_logs()
                self._step_captures(site)
                continue
            data = self._socket.recv(READ_BYTES)
            if not data:
                return
            for frame in self._reader.feed(data):
                if frame.kind is FrameKind.STOP:
                    return
                self._handle(frame)

    def close(self) -> None:
        if self._site is not None:
            self._site.close()

    def _handle(self, frame: Frame) -> None:
        progress, is_entry = self._progress, frame.kind is FrameKind.ENTRY
        progress[PARTITION], progress[INDEX] = frame.partition, frame.ident if is_entry else 0
        # What an entry without calls does cannot be left out, however often the site ends at it.
        progress[POSITION] = NO_CALL if is_entry and frame.payload[KIND_OFFSET] != RecordKind.BATCH else 0
        progress[READ] = frame.ident if frame.kind is FrameKind.READ else 0
        progress[BUSY] = 1  # last: the other words count from then on, wherever the process ends
        try:
            if is_entry:
                self._apply(frame)
            else:
                self._dispatch(frame)
            if (site := self._site) is not None and site.captures:
                self._step_captures(site)
        except EnvironmentFault as error:
            self._end(frame, error.kind, str(error), error.position)
        except (ProceduresError, CatalogMissing, Locked) as error:
            self._end(frame, "refused", f"{type(error).__name__}: {error}", 0)
        progress[HANDLED] += 1
        progress[BUSY] = 0

    def _end(self, frame: Frame, kind: str, message: str, position: int) -> NoReturn:
        index, read = (frame.ident if frame.kind is of else 0 for of in (FrameKind.ENTRY, FrameKind.READ))
        where = {"partition": frame.partition, "index": index, "position": position, "read": read}
        fault = {"kind": kind, "message": message, **where}
        self._send(FrameKind.FAULT, orjson.dumps(fault))
        end_output()
        os._exit(1)  # no clean-up: it would wait for the disk that failed, or for whatever the application does at exit

    def _apply(self, frame: Frame) -> None:
        """Applies a log entry, and answers."""
        if (site := self._site) is None:
            raise RuntimeError("ENTRY before HELLO")
        applied, answer = site.apply(decode_record(frame.payload), self._count_step), b""
        if applied is not None:
            answer = encode_applied(
                statuses=applied.statuses,
                earlier=applied.txn_ids if type(applied.txn_ids) is list else None,
                result_hashes=applied.result_hashes,
                bodies=applied.bodies,
                rows_digest=applied.rows_digest,
                traces=applied.traces,
            )
        self._socket.sendall(encode_frame(FrameKind.APPLIED, answer, partition=frame.partition, ident=frame.ident))

    def _dispatch(self, frame: Frame) -> None:
        if (begin := {FrameKind.TRY: self._try_code, FrameKind.HELLO: self._hello}.get(frame.kind)) is not None:
            begin(orjson.loads(frame.payload))
            return
        site = self._site
        if site is None:
            raise RuntimeError(f"{frame.kind.name} before HELLO")
        if frame.kind is FrameKind.READ:
            as_of, replies = site.read(frame.partition, orjson.loads(frame.payload)[0])
            self._progress[READ] = 0  # neither the answer's way nor a capture's step is the read's doing
            status, body = replies[0]
            answer = encode_read_answer(as_of, status, body, site.read_traces())
            self._send(FrameKind.READ_ANSWER, answer, partition=frame.partition, ident=frame.ident)
        elif frame.kind is FrameKind.LEAVE_OUT:
            site.leave_out(frame.partition, frame.ident, orjson.loads(frame.payload))
        elif frame.kind is FrameKind.CODE:
            code = orjson.loads(frame.payload)
            site.run_code(code["version"], Bundle.from_bytes(code["bundle"].encode()), partitions=code["partitions"])
        elif frame.kind is FrameKind.PREPARE:
            for partition, ident, ended in site.abort_captures(TABLES_CHANGE, frame.partition):
                self._send(FrameKind.CAPTURED, orjson.dumps(ended), partition=partition, ident=ident)
            report = site.prepare(frame.partition, orjson.loads(frame.payload), self._count_step)
            self._send(FrameKind.PREPARED, orjson.dumps(report), partition=frame.partition)
        elif frame.kind is FrameKind.DROP:
            site.drop_prepared(frame.partition)
        elif frame.kind is FrameKind.CAPTURE:
            order = orjson.loads(frame.payload)
            site.capture(frame.partition, frame.ident, order["path"], Wish.of(order["wish"]) if order["wish"] else None)
        elif frame.kind is FrameKind.PACE:
            site.pace(frame.partition, orjson.loads(frame.payload))

    def _try_code(self, order: dict[str, Any]) -> None:
        problem, bundle = "", Bundle.from_bytes(order["bundle"].encode())
        try:
            self._tried[bundle.hash] = load_alone(bundle, order["own_folders"], order["empty"])
        except BundleError as error:
            problem = str(error)
        self._send(FrameKind.TRIED, orjson.dumps({"problem": problem}))

    def _hello(self, hello: dict[str, Any]) -> None:
        catalogs = Catalogs()
        plan = SitePlan.of(hello, catalogs)
        self._locks = [StateLock(path) for path in plan.state_files.values()]
        for version, text in hello["bundles"].items():
            bundle = Bundle.from_bytes(text.encode())
            catalogs.add_bundle(int(version), bundle, partitions=hello["partitions"], loaded=self._tried.pop(bundle.hash, None))
        self._site = Site(plan, partial(self._progress.__setitem__, POSITION))
        settle_garbage_collection()
        self._send(FrameKind.READY, orjson.dumps({"positions": self._site.positions}, option=orjson.OPT_NON_STR_KEYS))

    def _count_step(self) -> bool:
        """The site moves."""
        self._progress[STEPS] += 1
        return False

    def _step_captures(self, site: Site) -> None:
        self._count_step()
        for partition, ident, report in site.step_captures():
            self._send(FrameKind.CAPTURED, orjson.dumps(report), partition=partition, ident=ident)

    def _send(self, kind: FrameKind, payload: bytes, *, partition: int = 0, ident: int = 0) -> None:
        self._socket.sendall(encode_frame(kind, payload, partition=partition, ident=ident))


def main() -> None:
    """Entry point; the node gives both descriptors."""
    ignore(*STOPS)  # the node decides when its sites end
    queue_output("stdout", "stderr", as_json=False)  # what procedures print must not hold up calls
    end_children()
    sock = socket.socket(fileno=int(sys.argv[1]))
    page = mmap.mmap(int(sys.argv[2]), PROGRESS_BYTES)
    process = SiteProcess(sock, memoryview(page).cast("Q"))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the node is gone
        process.run()
    process.close()
