"""When a batch comes to which stage: what the sequencer tells the meter. See `cmdlog.node.meter` for the stages.

One rule: under the sequencer's lock, one reading of the clock per call of a function here. Batches without calls (control
entries) are not timed; a multi-partition call counts in every partition's batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from cmdlog.node.meter import STAGES, Meter
from cmdlog.node.stream import Flight, Stream
from cmdlog.wal.block import block_bytes


def note_taken(meter: Meter, flights: Iterable[Flight], records: Sequence[bytes]) -> None:
    """The log has taken a block of these records."""
    now, queue = meter.now(), meter.stages["queue"]
    meter.blocks += 1
    meter.block_bytes += block_bytes(records)
    for flight in flights:
        flight.taken_at = now
        if count := len(flight.dones):
            queue.add(now - flight.opened_at, count)
            meter.batch_calls.add(count)
            meter.batch_bytes.add(len(flight.record))


def note_ready(meter: Meter, flights: Iterable[Flight]) -> None:
    """They may go to their sites."""
    now, log = meter.now(), meter.stages["log"]
    for flight in flights:
        flight.ready, flight.ready_at = True, now
        if flight.dones:
            log.add(now - flight.taken_at, len(flight.dones))


def note_sent(meter: Meter, stream: Stream, flight: Flight) -> None:
    """A site gets it; maybe not the first one."""
    stream.sent_index = flight.index
    if flight.sent_at:
        return
    flight.sent_at = meter.now()
    if flight.dones:
        meter.stages["commit"].add(flight.sent_at - flight.ready_at, len(flight.dones))


def note_answered(meter: Meter, stream: Stream, flight: Flight, statuses: bytes | bytearray) -> None:
    """Its site has answered it."""
    now = flight.answered_at = meter.now()
    meter.busy_s[stream.partition] += now - max(flight.sent_at, stream.answered_at)
    stream.answered_at = now
    if flight.dones:
        meter.stages["execute"].add(now - flight.sent_at, len(flight.dones))
        if now - flight.opened_at > meter.slow_s:
            ends = (flight.opened_at, flight.taken_at, flight.ready_at, flight.sent_at, now)
            stages = {f"{name}_ms": round((b - a) * 1000, 3) for name, (a, b) in zip(STAGES, pairwise(ends), strict=False)}
            meter.slow.append((flight.txn_ids, stages))
    if flight.procedures:
        meter.answered(flight.procedures, statuses)


def note_settled(meter: Meter, flight: Flight) -> int:
    """It was answered before it was durable, and now it is; how many calls waited for that."""
    waited = len(flight.lax) - sum(flight.lax)
    meter.stages["settle"].add(meter.now() - flight.answered_at, waited)
    return waited
