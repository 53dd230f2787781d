"""Snapshots of the running node: when one is due, how it is made, and what the log may let go because of it.

One rule: the log gives nothing up before the proof of its replacement is durable. The order, and what a crash after each leaves:

    1 capture    the site copies pages between batches, or   a temporary folder, removed at start
                 the rows that changed since an earlier one
    2 seal       checksums, fsync, rename, fsync, read back  the same, or a snapshot that nothing relies on yet
    3 mark       SNAPSHOT_MARK in the log, durable           a snapshot; the log still reaches back to the old anchor
    4 anchor     moves to the snapshot to fall back to       segments before it may go; moved again at start
    5 retention  more than `snapshots_kept`: the oldest go   more snapshots than wanted, fewer after the next one

The mark also proves that the image is durable *in the log*: it stands behind the image's last entry, and blocks become durable in
order. So with durability=async no image of entries that a power cut may take is ever relied on.

The anchor is the block of the newest snapshot that shares no file with the newest one (`snapshot.lineage`), in general the
second-newest, so that a damaged newest one falls back to its predecessor and a longer log. Any entry behind an image lies in the
image's `log_block` or later; for an idle partition that is the log's last block, or an idle partition would hold the whole log.

One thread decides and waits; pages are copied by the sites, checksums are made by a process of low priority (`snapshot.seal`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from cmdlog.node.schedule import LogView, due
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.instance import Identity
from cmdlog.wal.record import Kind, encode_json
from snapshot.catalog import Snapshot, clean, free_path, list_snapshots, temporary_path
from snapshot.errors import SnapshotError, SnapshotFailed
from snapshot.lineage import Wish, next_wish
from snapshot.manifest import DELTA_NAME, IMAGE_NAME
from snapshot.retention import anchor_block, retain

LOOK_EVERY_S: Final = 0.5  # at the log's fill; a segment of 16 MiB takes about as long at full speed
RETRY_FIRST_S: Final = 1.0  # after a failure; doubled up to RETRY_MAX_S
RETRY_MAX_S: Final = 60.0
SEAL_TIMEOUT_S: Final = 3600.0  # of the process that checks an image: an hour is more than any disk needs
IDLE_SEAL_S: Final = 10.0  # of one that takes only time that nobody else wants, beside what its bytes need …
IDLE_BYTES_PER_S_MIN: Final = 5e6  # … a fifth of what a free core does; slower, it may never end on a machine that is always busy

log = structlog.get_logger("cmdlog.snapshots")


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the node gives. All may be called from the snapshot thread, `applied_block` from whoever calls `captured`."""

    capture: Callable[[int, int, str, Wish], None]  # partition, ident, path of a whole image, or rather a delta: begins
    applied_block: Callable[[int], int]  # a block such that no entry behind the last applied one lies before it
    facts: Callable[[int], Mapping[str, Any]]  # partition -> epoch, configuration, catalogs, environment, key_policy
    note: Callable[[bytes, Callable[[], None]], None]  # a record for the log; the callback says that it is durable
    anchor: Callable[[str, int], None]  # name, first block that is needed
    view: Callable[[], LogView]
    let_go: Callable[[Snapshot], None] | None = None  # what becomes of a snapshot that does not count any more; None: removed


class Snapshotter:
    """The node's snapshot thread. `captured`, `lost`, `take`, `wake` may be called from any thread."""

    def __init__(
        self,
        files: Files,
        directory: str,
        identity: Identity,
        partitions: Sequence[int],
        *,
        kept: int,
        log_fraction: float,
        hooks: Hooks,
    ) -> None:
        self._files, self._directory, self._identity = files, directory, identity
        self._partitions, self._kept, self._fraction, self._hooks = partitions, kept, log_fraction, hooks
        self._lock = threading.Condition()
        self._wanted: deque[tuple[int, Future[dict[str, Any]]]] = deque()
        self._ident = 0
        self._waiting_for: int | None = None  # partition of the capture under way
        self._report: dict[str, Any] | None = None  # of the capture under way, once it is there
        self._seal: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._retry_at, self._retry_s = 0.0, RETRY_FIRST_S
        self._snapshots: dict[int, list[Snapshot]] = {}
        self.error = ""  # why the last attempt failed, "" when it did not
        self.taken = self.failures = 0
        self.last_s = 0.0  # how long the last one took
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        clean(files, directory)
        self._look()

    # -- the node's side -------------------------------------------------------------------------------------------------

    def anchors(self) -> dict[str, int]:
        """Name -> first needed block, for every partition; the log must know them before it recycles anything."""
        return {_anchor_name(p): anchor_block(self._snapshots.get(p, ())) or 0 for p in self._partitions}

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """The log is short of room: look now."""
        with self._lock:
            self._lock.notify_all()

    def take(self, partition: int) -> Future[dict[str, Any]]:
        """Asks for a snapshot now; the future gets its description, or SnapshotFailed."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._stopping:
                future.set_exception(SnapshotFailed("the node is stopping"))
                return future
            self._wanted.append((partition, future))
            self._lock.notify_all()
        return future

    def captured(self, ident: int, report: dict[str, Any]) -> None:
        """A site has completed the image; called in the order in which the site answers."""
        block = self._hooks.applied_block(report["partition"])
        with self._lock:
            if ident == self._ident:
                self._report = {**report, "log_block": block}
                self._lock.notify_all()

    def lost(self, partitions: Sequence[int]) -> None:
        """Sites have ended, and their captures with them."""
        with self._lock:
            if self._waiting_for is not None and self._waiting_for in partitions and self._report is None:
                self._report = {"error": "the site ended during the capture"}
                self._lock.notify_all()

    def list(self) -> list[dict[str, Any]]:
        """Every snapshot, by partition and age."""
        return [describe(snapshot) for p in sorted(self._snapshots) for snapshot in self._snapshots[p]]

    def stop(self) -> None:
        """Breaks off what is under way; harmless at any step."""
        with self._lock:
            self._stopping = True
            if self._seal is not None:
                self._seal.kill()
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        for _, future in self._wanted:
            future.set_exception(SnapshotFailed("the node is stopping"))

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            partition, future = job
            try:
                made = self._make(partition)
            except (SnapshotError, WalError, OSError) as error:
                self._note_failure(partition, error)
                if future is not None:
                    future.set_exception(error if isinstance(error, SnapshotError) else SnapshotFailed(str(error)))
                continue
            except Exception as error:  # our own bug: without this thread the log fills and never empties
                log.exception("snapshot failed", partition=partition)
                self._note_failure(partition, error)
                if future is not None:
                    future.set_exception(SnapshotFailed(f"{type(error).__name__}: {error}"))
                continue
            self.error, self._retry_s = "", RETRY_FIRST_S
            if future is not None:
                future.set_result(made)

    def _next_job(self) -> tuple[int, Future[dict[str, Any]] | None] | None:
        """Waits for something to do; None when the node stops."""
        with self._lock:
            while not self._stopping:
                if self._wanted:
                    return self._wanted.popleft()
                if time.monotonic() >= self._retry_at:
                    partition = due(self._hooks.view(), self._snapshots, self._partitions, fraction=self._fraction)
                    if partition is not None:
                        return partition, None
                self._lock.wait(LOOK_EVERY_S)
        return None

    def _make(self, partition: int) -> dict[str, Any]:
        """All five steps. On return the snapshot is verified, marked in the log, and counts."""
        began = time.monotonic()
        temporary = temporary_path(self._directory, partition)
        os.mkdir(temporary, 0o750)
        try:
            report = self._capture(partition, temporary)
            path = free_path(self._files, self._directory, partition=partition, index=report["index"])
            self._seal_image(temporary, path, {**report, **self._identity_facts(), **self._hooks.facts(partition)})
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._mark(report, os.path.basename(path))
        self._look()
        self._hooks.anchor(_anchor_name(partition), anchor_block(self._snapshots[partition]) or 0)
        gone = retain(self._files, self._snapshots[partition], kept=self._kept, let_go=self._hooks.let_go)
        self._look()
        made = next(describe(snapshot) for snapshot in self._snapshots[partition] if snapshot.path == path)
        self.taken, self.last_s = self.taken + 1, time.monotonic() - began
        log.info(
            "snapshot taken",
            partition=partition,
            index=made["index"],
            kind=made["kind"],
            bytes=made["bytes"],
            seconds=round(self.last_s, 3),
            removed=gone,
        )
        return made

    def _capture(self, partition: int, folder: str) -> dict[str, Any]:
        wish, base = next_wish(self._snapshots[partition], os.path.join(folder, DELTA_NAME))
        asked_block = self._hooks.applied_block(partition)
        with self._lock:
            self._ident += 1
            self._waiting_for, self._report = partition, None
            ident = self._ident
        self._hooks.capture(partition, ident, os.path.join(folder, IMAGE_NAME), wish)
        with self._lock:
            self._lock.wait_for(lambda: self._report is not None or self._stopping)
            report, self._waiting_for = self._report, None
        if report is None:
            raise SnapshotFailed("the node is stopping")
        if "error" in report:
            raise SnapshotFailed(f"the image of partition {partition} could not be written: {report['error']}")
        facts = {name: report[name] for name in ("kind", "partition", "index", "term", "checksum", "txn_id", "log_block")}
        if facts["kind"] == "full" or base is None or base.manifest is None:
            return facts
        # A delta stands where the site was when it began, not where it ended: entries behind that may lie in earlier blocks.
        return {**facts, "base": base.manifest.as_base(base.name), "log_block": asked_block}

    def _seal_image(self, temporary: str, final: str, facts: Mapping[str, Any]) -> None:
        facts = {**facts, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        order = orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)
        size = sum(entry.stat().st_size for entry in os.scandir(temporary))
        # Being nice is not enough: what wakes up waits for the end of a nice process's slice, 3 ms, and the p99 of calls at half
        # load was half as long again. One of SCHED_IDLE makes way at once, but gets nothing where others want all there is: then
        # it is ended, and a nice one begins anew.
        ended = self._run_seal(temporary, final, order, policy=os.SCHED_IDLE, timeout_s=IDLE_SEAL_S + size / IDLE_BYTES_PER_S_MIN)
        if ended is None and os.path.exists(temporary):
            ended = self._run_seal(temporary, final, order, policy=os.SCHED_OTHER, timeout_s=SEAL_TIMEOUT_S)
        if ended is None:
            raise SnapshotFailed("sealing took too long")
        code, answer = ended
        if code != 0:
            raise SnapshotFailed(_why(answer, code))

    def _run_seal(self, temporary: str, final: str, order: bytes, *, policy: int, timeout_s: float) -> tuple[int, bytes] | None:
        """Exit code and answer of the process; None when it was ended because it took too long."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self._lock:
            if self._stopping:
                raise SnapshotFailed("the node is stopping")
            process = self._seal = subprocess.Popen(
                [sys.executable, "-m", "snapshot.seal", temporary, final],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        with contextlib.suppress(OSError):
            os.sched_setscheduler(process.pid, policy, os.sched_param(0))
        try:
            answer, _ = process.communicate(order, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None
        finally:
            self._seal = None
        return process.returncode, answer

    def _mark(self, report: Mapping[str, Any], name: str) -> None:
        """Durable on return: the log says that the snapshot exists and was verified."""
        durable = threading.Event()
        value = {"name": name, **{key: report[key] for key in ("checksum", "txn_id", "log_block")}}
        record = encode_json(
            Kind.SNAPSHOT_MARK,
            {**value, "index": report["index"], "term": report["term"]},
            partition=report["partition"],
            term=report["term"],
            index=report["index"],
        )
        self._hooks.note(record, durable.set)
        while not durable.wait(LOOK_EVERY_S):
            if self._stopping:
                raise SnapshotFailed("the node is stopping; the snapshot is whole and counts from the next start on")

    def _look(self) -> None:
        by_partition: dict[int, list[Snapshot]] = {p: [] for p in self._partitions}
        for snapshot in list_snapshots(self._files, self._directory, self._identity):
            by_partition.setdefault(snapshot.partition, []).append(snapshot)
        self._snapshots = by_partition

    def _identity_facts(self) -> dict[str, Any]:
        identity = self._identity
        return {
            "cluster_id": identity.cluster_id.hex(),
            "node_id": identity.node_id,
            "incarnation": identity.incarnation.hex(),
        }

    def _note_failure(self, partition: int, error: Exception) -> None:
        if self._stopping:
            return
        self.error, self.failures = str(error), self.failures + 1
        self._retry_at = time.monotonic() + self._retry_s
        log.error("snapshot failed", partition=partition, reason=str(error), retry_s=self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        with contextlib.suppress(SnapshotError, WalError, OSError):
            self._look()


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as the interfaces show it."""
    shown: dict[str, Any] = {"name": snapshot.name, "partition": snapshot.partition, "index": snapshot.index}
    if snapshot.manifest is None:
        return {**shown, "problem": snapshot.problem}
    manifest = snapshot.manifest
    return {
        **shown,
        "term": manifest.term,
        "txn_id": str(manifest.txn_id),
        "bytes": manifest.bytes,
        "rows": sum(table.rows for table in manifest.tables if not table.name.startswith("_cmdlog_")),
        "kind": manifest.kind,
        "base": manifest.base.name if manifest.base is not None else None,
        "created": manifest.created,
        "log_block": manifest.log_block,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what it was not told any more
            if stream is not None:
                stream.close()


def _anchor_name(partition: int) -> str:
    return f"snapshot-p{partition:04d}"


def _why(answer: bytes, code: int) -> str:
    try:
        return str(orjson.loads(answer.splitlines()[-1])["error"])
    except (IndexError, KeyError, orjson.JSONDecodeError):
        return f"the sealing process ended with code {code}"
