"""Consensus: a sans-IO Raft core; no clock, chance, disk, socket or thread inside.

One `Core` is one node of one group. Everything goes in by its methods and comes out of `ready`, so the same calls always have the
same effects; `multi.Groups` drives many cores over one log. The loop of a caller with one group:

    core = Core(node, rng=random.Random(seed), settings=Settings(), restored=what_the_disk_had)
    writing = deque()                                    # Readies whose writes are not durable yet, in order
    while True:
        event = next_event()                             # time, message, proposal, finished write, finished copy
        if event.is_tick: core.tick()
        elif event.is_message: core.step(event.message)
        elif event.is_proposal: core.propose(event.payloads)
        elif event.is_copy: core.report_snapshot(event.manifest, event.outcome)
        elif event.is_durable:                           # the oldest `event.count` writes are durable now
            for _ in range(event.count):
                ready = writing.popleft()
                send(ready.send_after_fsync)
                core.advance(ready.completion)
        while (ready := core.ready()) is not None:
            send(ready.send_now)
            write(ready.hard_state, ready.snapshot, ready.entries)  # in this order, in one atomic piece; sync follows
            writing.append(ready)
            apply(ready.committed)
            answer(ready.reads)
            start_copy(ready.copy)

The duties of the caller, by number:

 1. *Order.* Readies are handled in the order in which they were taken; their writes become durable in that order.
 2. *One piece.* Hard state, snapshot and entries of one Ready are on disk all or not at all. `entries` replace everything from
    their first index on; `snapshot` replaces the whole log.
 3. *Before the write:* `send_now` may leave at once: a leader's entries and heartbeats, answers to heartbeats, pre-votes, reads.
 4. *After the write:* `send_after_fsync` leaves only when this Ready's write **and all earlier ones** are durable, also when this
    Ready writes nothing itself: votes, requests for votes, acknowledgements. `advance` gets `completion` at the same moment.
 5. *A failed write or sync* is final: no retry on that file, nothing of `send_after_fsync` leaves, `advance` is not called, and
    the core is built again from what is durable.
 6. *Restart.* `Restored` holds the last durable hard state, manifest and entries, exactly. A disk that was wiped or set back says
    so (`Franchise.NONE`): its node is silent. It is taken out of the group, by a committed configuration without it, and in again
    as a learner under a new incarnation; once that is committed, it is started with the place of that entry as `admitted`, and so
    at every later start. The same goes for any other disk that takes the place of a former member's.
 7. *Apply* `committed` in order, each entry once; after a restart they begin again behind the manifest. Entries of a kind other
    than normal are the group's own; their payload is not for the state machine.
 8. *Reads* are served once their index is applied. `None` means that the leader is gone: ask again.
 9. *Ticks* follow real time: after a pause, all that were missed are given before anything else.
10. *Copies.* `copy` names files to fetch, checked by their checksums; then `report_snapshot`. The state that `snapshot` stands
    for replaces the present one when its record is durable.
11. *Messages* may be lost, late, doubled and in any order, but never changed, and never come from another cluster, group or
    incarnation: the frame around them sees to it.

`InvariantBroken` from any call ends this group alone; every later call raises it again.
"""

from cmdlog.raft.configuration import LEAVE_JOINT, Act, Change, Configuration, NodeId, Step, Transition
from cmdlog.raft.core import CopyOutcome, Core
from cmdlog.raft.entries import Completion
from cmdlog.raft.errors import (
    BadChange,
    BadConfiguration,
    ChangeRefused,
    Drop,
    InvariantBroken,
    ProposalRefused,
    RaftError,
    Refusal,
    Refused,
)
from cmdlog.raft.membership import Guard
from cmdlog.raft.messages import Entries, HardState, Manifest, Message, Segment
from cmdlog.raft.ready import Placed, ReadResult, Ready
from cmdlog.raft.settings import Settings
from cmdlog.raft.state import Franchise, Restored, Role

__all__ = [
    "LEAVE_JOINT",
    "Act",
    "BadChange",
    "BadConfiguration",
    "Change",
    "ChangeRefused",
    "Completion",
    "Configuration",
    "CopyOutcome",
    "Core",
    "Drop",
    "Entries",
    "Franchise",
    "Guard",
    "HardState",
    "InvariantBroken",
    "Manifest",
    "Message",
    "NodeId",
    "Placed",
    "ProposalRefused",
    "RaftError",
    "ReadResult",
    "Ready",
    "Refusal",
    "Refused",
    "Restored",
    "Role",
    "Segment",
    "Settings",
    "Step",
    "Transition",
]
