"""The sequencer while sites cannot run: who is turned away, what is held back, and who is told that nobody knows.

One rule: of a call that is turned away nothing is logged; a call that is logged is kept until a site has applied it, also when
its caller was told `outcome_unknown` because that takes too long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from threading import RLock

from cmdlog.node.outcome import CallRefused, Done, Reply, UnknownOutcome
from cmdlog.node.sequencing.partition_pipeline import Flight, PartitionPipeline, Pending, ReadMarker


class Standstill:
    """Works on the sequencer's streams, under its lock. `forget` takes pending batches out of its sums."""

    def __init__(
        self,
        lock: RLock,
        streams: Mapping[int, PartitionPipeline],
        *,
        forget: Callable[[Collection[Pending]], None],
        pump: Callable[[PartitionPipeline], None],
        kick: Callable[[], None],
    ) -> None:
        self._lock, self._streams, self._forget, self._pump, self._kick = lock, streams, forget, pump, kick

    def turn_away(self, refusals: Mapping[int, CallRefused | None]) -> None:
        """From now on calls to these partitions are refused so, also those that wait for a batch; None lets calls in."""
        told: list[tuple[Done, CallRefused]] = []
        with self._lock:
            for partition, refusal in refusals.items():
                self._streams[partition].refusal = refusal
            refused = {partition: refusal for partition, refusal in refusals.items() if refusal is not None}
            for refusal in list(refused.values())[:1]:
                waiting = withdraw(self._streams, refused)
                self._forget(waiting)
                told = [(done, refusal) for pending in waiting for done in pending.dones]
        for done, refusal in told:
            done(refusal.again())
        self._kick()

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
            self._streams[partition].halted = True

    def let_go(self, partition: int) -> None:
        """Its batches go to the site again."""
        with self._lock:
            stream = self._streams[partition]
            stream.halted = False
            self._pump(stream)

    def give_up(self, partitions: Collection[int], why: str) -> int:
        """Tells whoever waits for a batch that these partitions hold up that the outcome is unknown; how many that were."""
        with self._lock:
            flights = stuck(self._streams, partitions)
            dones = [done for flight in flights for done in flight.dones if done is not _nobody]
            for flight in flights:
                flight.dones = [_nobody] * len(flight.dones)
        unknown = UnknownOutcome(why)
        for done in dones:
            done(unknown)
        return len(dones)

    def waiting(self) -> dict[int, int]:
        """Partition -> calls that are logged and not executed; those without any are not in it."""
        with self._lock:
            counts = {p: sum([len(flight.dones) for flight in stream.flights]) for p, stream in self._streams.items()}
        return {partition: count for partition, count in counts.items() if count}


def withdraw(streams: Mapping[int, PartitionPipeline], partitions: Collection[int]) -> list[Pending]:
    """Takes out what the log has not taken: batches of these partitions, and multi-partition calls, which concern them too."""
    out: list[Pending] = []
    for partition, stream in streams.items():
        kept: deque[Pending | ReadMarker] = deque()
        for item in stream.closed:
            goes = isinstance(item, Pending) and (item.everywhere or partition in partitions)
            (out if goes else kept).append(item)  # type: ignore[arg-type]  # only a Pending goes
        stream.closed = kept
        if partition in partitions and stream.open.params:
            out.append(stream.open)
            stream.open = Pending()
    return out


def stuck(streams: Mapping[int, PartitionPipeline], partitions: Collection[int]) -> list[Flight]:
    """Batches that wait for one of these partitions: its own, and those behind a multi-partition call that it runs first."""
    found: list[Flight] = []
    for partition, stream in streams.items():
        blocked = partition in partitions
        for flight in stream.flights:
            step = flight.step
            blocked = blocked or (step is not None and not step.done and step.places[0][0] in partitions)
            if blocked and flight.outcomes is None:
                found.append(flight)
    return found


def _nobody(reply: Reply) -> None:
    """Stands for a caller who was told already."""
