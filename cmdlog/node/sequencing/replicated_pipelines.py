"""The pipelines of a node that is one of several: what consensus hands out becomes flights, what was proposed here is committed.

One rule: a site gets what is committed, in the order of its partition, from any proposer. Callers wait on the node that
proposed their call; when it no longer leads, those whose calls are not known to be committed are answered `outcome_unknown`, and
those whose calls were not proposed are refused: of these nothing is logged. The same holds while it leads and no majority takes
entries: calls are suspended, and callers whose calls are not committed for too long are answered `outcome_unknown`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cmdlog.node.outcome import CallRefused, Done, NotReady, UnknownOutcome
from cmdlog.node.sequencing.block_builder import BlockBuilder
from cmdlog.node.sequencing.flight import Flight
from cmdlog.node.sequencing.intake import Admission, Closed
from cmdlog.node.sequencing.log_feed import LogFeed
from cmdlog.node.sequencing.partition_pipeline import PartitionPipeline, PipelineSet
from cmdlog.node.sequencing.read_requests import ReadRequests
from cmdlog.node.sequencing.site_feed import LOOK_S, take_callers

COMMIT_S: Final = 1.0  # for what was proposed to be committed, when the node stops and no other node has taken its leadership


class ReplicatedPipelines:
    """Thread-safe, by the lock of the pipelines."""

    def __init__(
        self, pipelines: PipelineSet, log_feed: LogFeed, admission: Admission, builder: BlockBuilder, reads: ReadRequests
    ) -> None:
        self._pipelines, self._log_feed, self._admission, self._builder = pipelines, log_feed, admission, builder
        self._reads = reads
        self._lock, self._streams = pipelines.lock, pipelines.by_partition

    # -- what consensus says ---------------------------------------------------------------------------------------------

    def commit(self, partition: int, entries: Iterable[tuple[int, bytes]], block_of: Callable[[int], int | None]) -> None:
        """The partition's next entries (index, record) are committed; those that its state holds already are passed over.

        `block_of` says in which block of this node's log an entry lies.
        """
        with self._lock:
            stream = self._streams[partition]
            own, flights = deque(stream.uncommitted()), list[tuple[PartitionPipeline, Flight]]()
            for index, record in entries:
                if index <= stream.durable_index:
                    continue
                if own and own[0].index <= index:
                    flight = own.popleft()
                else:  # of an earlier leader: it may have waited for an entry of this one, as a parted call for its skip
                    flight = stream.follow(record, index, before=own[0] if own else None)
                if flight.index != index:
                    raise RuntimeError(f"partition {partition}: {index} is committed before {flight.index}, proposed here")
                flight.write(block_of(index) or flight.block, None)
                flights.append((stream, flight))
            due = self._log_feed.commit(flights, self._pipelines.now())
        for give in due:
            give()

    def lead(self, places: Mapping[int, tuple[int, int]], *, catalog: int) -> None:
        """From now on this node proposes: (term, next index) by partition. Calls are refused until `accept_calls`."""
        with self._lock:
            for partition, (term, index) in places.items():
                self._streams[partition].begin_leading(term, index)
            self._builder.run_catalog(catalog)
            self._pipelines.set_proposes(True)

    def skip_places(self, ends: Mapping[int, int]) -> None:
        """Consensus has placed entries between those of this node: the next ones get these indexes."""
        with self._lock:
            for partition, index in ends.items():
                self._streams[partition].begin_leading(self._streams[partition].term, index)

    def run_catalog(self, version: int) -> None:
        """Calls run this version of the code from now on."""
        with self._lock:
            self._builder.run_catalog(version)

    def accept_calls(self) -> None:
        """Calls are taken."""
        with self._lock:
            self._admission.open(Closed.LEADER)
            self._admission.open(Closed.MAJORITY)

    def step_down(self, refusal: CallRefused, why: str) -> int:
        """This node no longer leads, and calls are refused so. How many callers were answered `outcome_unknown`."""
        unknown: list[Done] = []
        with self._lock:
            self._admission.close(Closed.LEADER, refusal)
            self._admission.open(Closed.MAJORITY)
            self._pipelines.set_proposes(False)
            refused = self._withdraw_calls()
            for stream in self._streams.values():
                for flight in stream.drop_uncommitted():
                    self._admission.release(flight)
                    unknown += take_callers([flight])
                    unknown += flight.drop_waiting_entry()
                unknown += stream.drop_entries()
                self._pipelines.pass_reads(stream)
        for done in refused:
            done(refusal.again())
        for done in unknown:
            done(UnknownOutcome(why))
        return len(unknown)

    def suspend_calls(self, refusal: CallRefused | None) -> None:
        """Calls, and reads of all partitions, are refused so from now on, also those that wait; None: they are taken again.

        What is logged stays where it is.
        """
        with self._lock:
            if refusal is None:
                self._admission.open(Closed.MAJORITY)
                return
            self._admission.close(Closed.MAJORITY, refusal)
            refused = [*self._withdraw_calls(), *self._reads.withdraw()]
        for done in refused:
            done(refusal.again())

    def give_up_uncommitted(self, older_than_s: float, why: str) -> int:
        """Answers `outcome_unknown` to callers whose calls wait for their commit for so long; returns how many they were."""
        with self._lock:
            before = self._pipelines.now() - older_than_s
            late = [flight for flight in self._uncommitted() if flight.taken_at <= before]
            dones = take_callers(late)
        for done in dones:
            done(UnknownOutcome(why))
        return len(dones)

    def leave(self, given_up: Callable[[], bool], disconnect: Callable[[], None]) -> None:
        """This node stops: it places no calls, waits for the commit of those that it has, and leaves the others. Blocking.

        What is not committed when it has disconnected is answered `outcome_unknown`: nothing more will be heard of it here.
        """
        deadline, stopping = time.monotonic() + COMMIT_S, NotReady("the node is stopping")
        with self._lock:
            self._admission.close(Closed.NODE, stopping)
        while self._waits_for_commit() and time.monotonic() < deadline and not given_up():
            time.sleep(LOOK_S)
        disconnect()
        self.step_down(stopping, "the node stopped before the call was committed")

    def _waits_for_commit(self) -> bool:
        with self._lock:
            streams = self._streams.values()
            return any(stream.open.rows or stream.closed or stream.entries or stream.uncommitted() for stream in streams)

    def proposed(self, partition: int, index: int) -> bool:
        """Whether this node proposed the batch, and its callers still wait."""
        with self._lock:
            return any(flight.index == index and flight.dones for flight in self._streams[partition].flights)

    def _withdraw_calls(self) -> list[Done]:
        """Takes the calls that are not proposed from their streams; who waits for them."""
        withdrawn = [pending for stream in self._streams.values() for pending in stream.withdraw(refused=True)]
        self._admission.forget(withdrawn)
        return [done for pending in withdrawn for done in pending.dones]

    def _uncommitted(self) -> list[Flight]:
        return [flight for stream in self._streams.values() for flight in stream.uncommitted()]

    # -- what others ask -------------------------------------------------------------------------------------------------

    def run_up_to(self) -> dict[int, int]:
        """Index of the last entry that each partition's site has answered, of those that it was given."""
        with self._lock:
            return {partition: stream.applied_index for partition, stream in self._streams.items()}

    @property
    def suspended(self) -> bool:
        """Calls are refused although this node leads."""
        return self._admission.is_closed(Closed.MAJORITY)

    @property
    def uncommitted_s(self) -> float:
        """For how long the oldest entry that is not committed has been in the log; 0.0 when all are."""
        with self._lock:
            return max((self._pipelines.now() - flight.taken_at for flight in self._uncommitted()), default=0.0)

    @property
    def idle(self) -> bool:
        """Every committed entry is run."""
        with self._lock:
            return not any(stream.flights for stream in self._streams.values())
