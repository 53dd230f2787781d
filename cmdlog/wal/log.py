"""The command log: create, open, feed, read, close.

One rule: what `RecordSource.durable` was called for is in every later `open`, in order, and nothing that was not taken ever is.

Parts: `log_files` makes it, `survey` + `restart` + `repair` open it, `tail` gives out places, `ring` writes and syncs, `space`
keeps files ready, `groups` is the fold that makes checkpoints and `recovered`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from cmdlog.wal.directory.instance import (
    FOLDERS,
    LOG_FOLDER,
    RESERVE_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    Identity,
    Instance,
    Origin,
    begin_creation,
    end_creation,
    load_instance,
    write_instance,
)
from cmdlog.wal.directory.lock import DirectoryLock, make_folder, take_node, take_ownership
from cmdlog.wal.errors import Foreign, WalError, Wedged
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.record import Record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.hard_state import HardStateFile, open_hardstate
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.opening.home import check_home, record_first_home, record_home
from cmdlog.wal.opening.repair import Mended, Recovered, mend
from cmdlog.wal.opening.restart import decide
from cmdlog.wal.opening.survey import SegmentFile, Survey, refusal, survey_log
from cmdlog.wal.os_errors import wal_error
from cmdlog.wal.reader import read_records
from cmdlog.wal.writing.hard_state_writer import HardStateWriter
from cmdlog.wal.writing.log_files import create_log_files, random_generation
from cmdlog.wal.writing.ring import Ring
from cmdlog.wal.writing.segment_pool import SegmentPool
from cmdlog.wal.writing.tail import Tail
from cmdlog.wal.writing.watermarks import RecordSource, RingSettings, Sync


class Log:
    """An open log. `recovered` says what was found; call `start` to write. Thread-safe after that."""

    def __init__(
        self, files: Files, directory: str, *, survey: Survey, mended: Mended, hard: HardStateFile, owner: DirectoryLock,
        generation: Callable[[], int],
    ) -> None:  # fmt: skip
        self._files, self.directory, self.instance = files, directory, survey.instance
        self.recovered: Recovered = mended.recovered
        self._owner, self._closed = owner, False
        self._ring: Ring | None = None
        self._hard = HardStateWriter(hard)
        self._space = SegmentPool(files, survey, self._hard)
        self.anchors = self._space.anchors
        self._tail = Tail(files, self._space, mended, generation)

    # -- create, open ----------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        identity: Identity,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segments: int = SEGMENTS,
        reserve_bytes: int = RESERVE_BYTES,
        initial: Sequence[bytes] = (),
        owner: DirectoryLock | None = None,
        forked_from: Origin | None = None,
        begun_by: str = "",
        whole_ring: bool = False,
        generation: Callable[[], int] = random_generation,
    ) -> None:
        """Makes a node directory whose log begins with the records of `initial`; durable on return.

        `begun_by`: what has marked the directory as its own before (`instance.write_marker`). `whole_ring`: the space of all
        segments is taken now; without it, and for a log that was made without, `start` says what is taken.
        A crash on the way leaves a directory that the next call sweeps, and that `open` refuses.
        Raises: WrongDirectory, BadSettings, Locked, DiskFull, WriteFailed, RecordsTooLarge.
        """
        instance = Instance(identity, segment_bytes, segments, reserve_bytes, forked_from)
        instance.check()
        if not files.exists(directory):
            make_folder(files, directory)
        own = owner or take_ownership(files, directory)
        try:
            # The marker first and the instance file last: in between the directory is no node, and the next call sweeps it.
            begin_creation(files, directory, by=begun_by)
            create_log_files(
                files, os.path.join(directory, LOG_FOLDER), instance, initial, generation=generation(), whole_ring=whole_ring
            )
            write_instance(files, directory, instance)
            record_first_home(files, directory)
            end_creation(files, directory)
        finally:
            if owner is None:
                own.close()

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        identity: Identity | None = None,
        *,
        generation: Callable[[], int] = random_generation,
    ) -> Log:
        """Judges the directory by the restart table, repairs a torn or unproved tail, and returns the log.

        Durable on return: everything that `recovered` speaks of. Takes the lock.
        Raises: WrongDirectory, Locked, Corrupt, Foreign, NewerFormat, DiskFull, WriteFailed.
        """
        owner = take_node(files, directory)
        try:
            instance = load_instance(files, directory)
            if identity is not None and identity != instance.identity:
                raise Foreign(f"{directory} belongs to {instance.identity}, not to {identity}")
            end_creation(files, directory)
            for name in FOLDERS:
                if not files.exists(os.path.join(directory, name)):
                    files.mkdir(os.path.join(directory, name))
            # Look, judge, and only then write: what is refused is left as it was found.
            survey = survey_log(files, directory, instance)
            if (error := refusal(survey)) is not None:
                raise error
            check_home(files, directory, survey.hard)
            files.clear_temporaries(survey.log_dir, kept=survey.free)
            hard = open_hardstate(files, survey.log_dir)
            mended = mend(files, survey, decide(survey.facts), hard)
            record_home(files, directory, hard)
            survey.data = b""
            return cls(files, directory, survey=survey, mended=mended, hard=hard, owner=owner, generation=generation)
        except BaseException:
            owner.close()
            raise

    # -- feed ------------------------------------------------------------------------------------------------------------

    def start(
        self,
        source: RecordSource,
        *,
        threads: int = 4,
        seal_after_s: float = 0.010,
        sync: Sync = "sync",
        async_window_s: float = 0.010,
        early: bool = False,
        timed: Callable[[float], None] = lambda seconds: None,
        whole_ring: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to take blocks from `source`. `sync`: "off" is for benchmarks, and acknowledges what is only written; of
        "async" no seal has a sync of its own. A block for which no caller waits is synced within `async_window_s`.

        With `early` `RecordSource.written` is called before the sync of a block, not after it. `timed` gets the seconds of every
        sync whose end was seen, a block's own with its write; it is called under a lock and must be quick.
        `whole_ring`: the space of segments that is not in use yet is allocated in the background. With `threads=0` there are
        none: the caller runs turns and `run_background_work`, and everything happens in a stated order.
        """
        if self._ring is not None:
            raise RuntimeError("the log is started already")
        self._space.whole = whole_ring
        settings = RingSettings(
            threads=threads, sync=sync, seal_after_s=seal_after_s, async_window_s=async_window_s,
            early=early, timed=timed, clock=clock,
        )  # fmt: skip
        self._ring = Ring(self._files, self._tail, self._space, source, settings, hard=self._hard)
        if threads:
            self._space.start(self._ring.wedge)
            self._hard.start(self._ring.wedge)
            self._ring.start()

    def kick(self) -> None:
        """The source has something. Cheap, any thread. Raises: Wedged."""
        (self._ring or self._running).kick()

    def hasten(self) -> None:
        """Callers wait until what was written so far is durable: it is synced at once. Cheap, any thread."""
        if self._ring is not None:
            self._ring.hasten()

    def run_turn(self, beside: Callable[[], None] | None = None) -> bool:
        """Takes, writes, syncs and acknowledges in the calling thread; False when others are at it, or nothing was taken.

        `beside`, if the system can do that, is called after `RecordSource.written` and while the block is being synced.
        The caller must hold no lock that its source's methods need. Raises: Wedged.
        """
        return (self._ring or self._running).run_turn(beside)

    def run_background_work(self) -> None:
        """What the background threads do: recycles, prepares files, syncs what is only written, seals when nothing is in flight.

        For `threads=0`. A failure wedges the log.
        """
        ring = self._running
        try:
            self._space.prepare_files()
            self._hard.even_copies()
        except (WalError, OSError) as error:
            ring.wedge(wal_error(error, "preparing segments failed"))
        ring.rest()

    def close(self) -> None:
        """Takes what the source still has, makes it durable, seals, ends the threads, gives up the lock.

        Raises: Wedged when the log had failed; everything is closed then too.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._ring is not None:
                self._ring.drain()
                self._hard.note_durable(self._ring.durable_block)
        finally:
            if self._ring is not None:
                self._ring.stop()
            self._space.stop()
            self._hard.stop()
            self._owner.close()

    # -- read, room, anchors, status -------------------------------------------------------------------------------------

    def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]:
        """Durable records in (after, upto], in order, checked. Hold an anchor at or before `after` while reading.

        Raises: Corrupt, Recycled; WalError when `after` is no longer in the log.
        """
        return read_records(self._files, list(self._space.segments.values()), last=self.durable_block, after=after, upto=upto)

    @property
    def durable_block(self) -> BlockNumber:
        """The newest block that survives power loss."""
        return BlockNumber(self._ring.durable_block if self._ring is not None else self._tail.number)

    @property
    def groups(self) -> GroupStates:
        """The fold over everything taken so far. Before `start` it is anyone's; after it, the turn holder's."""
        return self._tail.groups

    @property
    def block_bytes_max(self) -> int:
        """Largest block, header and padding included, that `take` may fill."""
        return self._tail.block_bytes_max

    @property
    def head_bytes(self) -> int:
        """What header and checkpoint of the next segment take, as the log is now."""
        return SECTOR_BYTES + self._tail.checkpoint_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes on disk that ordinary records may still take; the reserve is left out. Cheap, any thread."""
        return max(0, self.left_bytes - self.instance.log_reserve_bytes)

    @property
    def reserve_left_bytes(self) -> int:
        """What is left of the reserve, which only control records use. Cheap, any thread."""
        return min(self.left_bytes, self.instance.log_reserve_bytes)

    @property
    def disk_full(self) -> str | None:
        """Why no further segment could be made; None when nothing is missing."""
        return self._space.disk_full

    @property
    def left_bytes(self) -> int:
        """What any records may still take, the reserve included. Cheap, any thread."""
        tail = self._tail
        return max(0, tail.left_bytes) + self._space.available * tail.fresh_bytes

    def left_beside(self, kept_bytes: int) -> int:
        """The same, less what is to be kept; 0 while no block is written before a segment is let go. Cheap, any thread."""
        tail, space = self._tail, self._space
        return 0 if space.awaited else max(0, tail.left_bytes) + space.available * tail.fresh_bytes - kept_bytes

    def ask_before_recycling(self, may_go: Callable[[SegmentFile, int], bool]) -> None:
        """Before `start`: `may_go` is asked of the oldest segment, with its last block, once every anchor has passed it.

        It is called by the thread that prepares files and answers at once; `look_again` after a "no" that has become a "yes".
        """
        self._space.may_go = may_go

    def look_again(self) -> None:
        """The answer of `may_go` may be another one now."""
        self._space.ask()

    @property
    def segments(self) -> list[SegmentFile]:
        """Every segment in use, oldest first."""
        return list(self._space.segments.values())

    def needs(self, path: str) -> bool:
        """Whether a segment in use has this path; no longer one whose file is just being recycled."""
        return any(segment.path == path and segment.sequence > self._space.recycled for segment in self.segments)

    def first_blocks(self) -> list[int]:
        """First block of every segment in use, ascending."""
        held = list(dict.values(self._space.segments))  # at once: another thread may be recycling one
        return sorted([segment.header.first_block for segment in held])

    def status(self) -> dict[str, object]:
        """What an operator asks: room, watermarks, syncs, anchors."""
        segments = len(self._space.segments)
        return {
            "segments": {
                "total": self.instance.segments,
                "used": segments,
                "ready": self._space.ready,
                "reserved": self._space.reserved,
                "without_space": self._space.unmade,
                "free": self.instance.segments - segments,
            },
            "segment_bytes": self.instance.segment_bytes,
            "bytes_used": (segments - 1) * self.instance.segment_bytes + self._tail.offset,
            "room_bytes": self.room_bytes,
            "reserve": {"bytes": self.instance.log_reserve_bytes, "left_bytes": self.reserve_left_bytes},
            "disk_full": self.disk_full,
            "first_block": self._space.oldest().header.first_block,
            "open_count": self.recovered.open_count,
            "verdict": self.recovered.verdict.value,
            "anchors": self.anchors.status(),
            **(self._ring.status() if self._ring is not None else {"durable_block": self._tail.number}),
        }

    # -- inside ----------------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Ring:
        """Raises: Wedged, before the start."""
        if self._ring is None:
            raise Wedged("the log is not started")
        return self._ring
