"""What the sites report, and what becomes of calls while sites cannot run.

One rule: of a call that is refused nothing is logged; a call that is logged is kept until a site has applied it, also when
its caller was answered `outcome_unknown` because that takes too long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from cmdlog.node.outcome import CallRefused, Done, NotReady, Reply, UnknownOutcome
from cmdlog.node.sequencing.flight import EXECUTED, Flight, RawOutcome, answer
from cmdlog.node.sequencing.intake import Admission, Closed
from cmdlog.node.sequencing.log_feed import LogFeed
from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline, PipelineSet
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import RECORD, decode_record, encode_digest

BatchDigest = tuple[int, int, bytes]  # of the rows that the batch changed; version of the code; a hash of each outcome
LOOK_S: Final = 0.001  # at whether calls are under way


class SiteFeed:
    """Thread-safe, by the lock of the pipelines."""

    def __init__(
        self, pipelines: PipelineSet, *, log_feed: LogFeed, admission: Admission, reads: ReadRequests, meter: StageTimings
    ) -> None:
        self._pipelines, self._log_feed, self._admission = pipelines, log_feed, admission
        self._reads, self._meter, self._notes = reads, meter, log_feed.notes.waiting
        self._lock, self._streams = pipelines.lock, pipelines.by_partition

    # -- what sites report -----------------------------------------------------------------------------------------------

    def answered(
        self,
        partition: int,
        index: int,
        outcomes: Sequence[RawOutcome],
        statuses: bytes | bytearray,
        digest: BatchDigest | None = None,
    ) -> None:
        """The site has applied batch `index`: an outcome per call, and their statuses as bytes; the digest is logged."""
        now = self._pipelines.now()
        with self._lock:
            if self._pipelines.ended:
                return
            stream = self._streams[partition]
            flight = stream.finish_first(index, outcomes, statuses, now)
            if digest is not None:
                _, _, _, _, term, *_ = RECORD.unpack_from(
                    flight.record
                )  # where another node proposed it, this one knows no other
                rows, catalog, hashes = digest
                record = encode_digest(
                    partition=partition, term=term, index=index, rows_digest=rows, catalog=catalog, result_hashes=hashes
                )
                self._notes.append((record, None))
            if flight.step is not None:
                self._pipelines.pass_step(flight.step)
            waits = flight.stage is EXECUTED
            if not waits:
                self._meter.finish(flight, partition)
                self._admission.release(flight)
            elif flight.lax_calls:
                self._meter.count(flight.of_lax(flight.procedures), flight.of_lax(statuses))
                self._admission.release_lax(flight)
            more = stream.open.rows or stream.closed
            if more:
                self._admission.let_go()
        if more:
            self._pipelines.wake_log()
        if not waits or flight.lax_calls:
            answer(flight, outcomes, lax=True if waits else None)

    def site_down(self, partition: int, *, culprit: int = 0) -> None:
        """The site is gone: batches wait for its successor, reads are refused (repeating them is safe), but for the `culprit`."""
        with self._lock:
            dones = self._reads.lose(partition, culprit)
            self._streams[partition].lose_site()
        for done in dones:
            done(NotReady(f"partition {partition} is being restored"))

    def site_up(self, partition: int, position: int) -> None:
        """A site serves the partition again, with everything up to `position` applied; the rest is sent once more, in order."""
        with self._lock:
            stream = self._streams[partition]
            passed = stream.gain_site(position)
            for flight in passed:
                self._admission.release(flight)
                self._meter.unknown(flight.procedures)
            for flight in passed:
                if flight.step is not None:
                    self._pipelines.pass_step(flight.step)
            self._pipelines.pump(stream)
        for flight in passed:
            answer(flight, None)
        self._pipelines.wake_log()

    def applied_block(self, partition: int) -> int:
        """Every entry that the site has not answered lies in this block or a later one."""
        with self._lock:
            stream = self._streams[partition]
            return stream.applied_block if stream.flights else self._log_feed.written_block

    # -- while they cannot run -------------------------------------------------------------------------------------------

    @property
    def refusing(self) -> bool:
        """Calls to some partition are refused."""
        return self._admission.is_closed(Closed.MAJORITY) or bool(self._admission.closed_partitions)

    def turn_away(self, refusals: Mapping[int, CallRefused | None]) -> None:
        """From now on calls to these partitions are refused so, also those that wait for a batch; None accepts calls again."""
        told: list[tuple[Done, CallRefused]] = []
        with self._lock:
            for partition, refusal in refusals.items():
                if refusal is None:
                    self._admission.open_partition(partition)
                else:
                    self._admission.close_partition(partition, refusal)
            refused = {partition: refusal for partition, refusal in refusals.items() if refusal is not None}
            for refusal in list(refused.values())[:1]:
                waiting = [pending for p, stream in self._streams.items() for pending in stream.withdraw(refused=p in refused)]
                self._admission.forget(waiting)
                told = [(done, refusal) for pending in waiting for done in pending.dones]
        for done, refusal in told:
            done(refusal.again())
        self._pipelines.wake_log()

    def drain_calls(self, timeout_s: float, is_over: Callable[[], bool], help_out: Callable[[], None]) -> dict[int, int] | None:
        """Waits until that is over; None, or what is still `waiting` when the time is. Blocking."""
        deadline = time.monotonic() + timeout_s
        while not is_over():
            if time.monotonic() >= deadline:
                return self.waiting()
            with contextlib.suppress(WalError):
                help_out()
            time.sleep(LOOK_S)
        return None

    def places_of(self, partition: int, index: int) -> list[tuple[int, int]]:
        """Where the batch at `index` must be skipped if it is: everywhere for a multi-partition call, [] when it may not be."""
        with self._lock:
            flight = next((flight for flight in self._streams[partition].flights if flight.index == index), None)
            if flight is None or flight.step is None:
                return [(partition, index)]
            return [] if flight.step.done else list(flight.step.places)

    def hold(self, partition: int) -> None:
        """The partition's site gets no batch until `let_go`; it serves reads of the state that it has."""
        with self._lock:
            self._streams[partition].set_halted(True)

    def let_go(self, partition: int) -> None:
        """Its batches go to the site again."""
        with self._lock:
            stream = self._streams[partition]
            stream.set_halted(False)
            self._pipelines.pump(stream)

    def give_up(self, partitions: Collection[int], why: str) -> int:
        """Answers `outcome_unknown` to callers whose batches these partitions hold up; returns how many they were."""
        with self._lock:
            flights = stuck(self._streams, partitions)
            dones = take_callers(flights)
        unknown = UnknownOutcome(why)
        for done in dones:
            done(unknown)
        return len(dones)

    def call_at(self, partition: int, index: int, position: int) -> tuple[int, int] | None:
        """Procedure number and transaction of a logged call that its site has not answered; None when there is none."""
        with self._lock:
            flight = next((flight for flight in self._streams[partition].flights if flight.index == index), None)
        if flight is None or not 0 <= position < len(flight.dones):
            return None
        return decode_batch(decode_record(flight.record)).procedures[position], flight.txn_ids[position]

    def waiting(self) -> dict[int, int]:
        """Partition -> calls that are logged and not executed; those without any are not in it."""
        with self._lock:
            counts = {p: sum([len(flight.dones) for flight in stream.flights]) for p, stream in self._streams.items()}
        return {partition: count for partition, count in counts.items() if count}


def stuck(streams: Mapping[int, PartitionPipeline], partitions: Collection[int]) -> list[Flight]:
    """Batches that wait for one of these partitions: its own, and those after a multi-partition call that it runs first."""
    found: list[Flight] = []
    for partition, stream in streams.items():
        blocked = partition in partitions
        for flight in stream.flights:
            step = flight.step
            blocked = blocked or (step is not None and not step.done and step.places[0][0] in partitions)
            if blocked:
                found.append(flight)
    return found


def take_callers(flights: Iterable[Flight]) -> list[Done]:
    """Who waits for these batches, and is answered by other means from now on; nobody is returned twice."""
    return [done for flight in flights for done in flight.replace_callers(_ignore_reply) if done is not _ignore_reply]


def _ignore_reply(reply: Reply) -> None:
    """Stands for a caller who was answered already."""
