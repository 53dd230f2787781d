"""Consensus: a sans-IO Raft core; no clock, chance, disk, socket or thread inside.

One `RaftCore` is one node of one group. Everything goes in by its methods and comes out of `ready`, so the
same calls always have the same effects. The loop of a caller with one group:

    core = RaftCore(node, rng=random.Random(seed), settings=RaftSettings(), restored=what_the_disk_had)
    writing = deque()  # Readies whose writes are not durable yet, in order
    while True:
        event = next_event()  # time, message, proposal, finished write
        if event.is_tick: core.tick()
        elif event.is_message: core.step(event.message)
        elif event.is_proposal: core.propose(event.payloads)
        elif event.is_fetch: core.report_entries(event.wanted, event.entries)
        elif event.is_durable:  # the oldest `event.count` writes are durable now
            for _ in range(event.count):
                ready = writing.popleft()
                send(ready.send_after_fsync)
                core.advance(ready.completion)
        while (ready := core.ready()) is not None:
            send(ready.send_now)
            write(ready.hard_state, ready.entries)  # this order, one atomic piece; sync follows
            writing.append(ready)
            apply(ready.committed)
            answer(ready.reads)
            make_again_from_a_copy(ready.copy)
            start_fetch(ready.fetch)

This is the only list of the caller's duties. DECISIONS.md says why; other texts cite the numbers.

 1. *Order.* Handle Readies in the order in which they were taken. Their writes become durable in that
    order.
 2. *One piece.* Hard state and entries of one Ready are on disk all or not at all. `entries` replace
    everything from their first index on.
 3. *Before the write:* `send_now` may leave at once. It holds a leader's entries and heartbeats, answers
    to heartbeats, pre-votes and reads.
 4. *After the write:* `send_after_fsync` leaves only when this write **and all earlier ones** are
    durable, even if this Ready writes nothing itself. It holds votes, requests for votes and
    acknowledgements. `advance` gets `completion` at the same moment.
 5. *A failed write or sync* is final. Nothing of `send_after_fsync` leaves, `advance` is not called, and
    that file is not written again. The core is built again from what is durable.
 6. *Restart.* `Restored` holds the last durable hard state, manifest and entries, exactly. A disk that
    was wiped or set back says `Franchise.NONE`, and its node is silent. It leaves the group by a
    committed configuration and returns as a learner under a new incarnation. Once that is committed, it
    starts with the place of that entry as `admitted`, now and at every later start. The same holds for
    any other disk that takes a former member's place. A node that only learns later that its disk was set
    back gets `Franchise.NO_WORD`: a leader may count on what it took since.
 7. *Apply* `committed` in order, each entry once. After a restart they begin after the manifest, or after
    `Restored.applied` where the state machine is durable by itself. Entries of kinds other than normal are
    the group's own; their payload is not for the state machine.
 8. *Reads* are served once their index is applied. `None` means that the leader is gone: ask again.
 9. *Ticks* follow real time. After a pause, give all missed ticks before anything else.
10. *Copies.* `copy` names a state that this node needs, because the leader's log begins after it. The
    core cannot take it: the caller ends this core and builds one from a copy of another node's data.
11. *Messages* may be lost, late, duplicated and reordered. They are never changed, and never come from
    another cluster, group or incarnation: the frame around them ensures it.
12. *Code before its calls.* No node gets a batch before the committed catalog entry that the batch runs.
    A replay of one log takes code in log order.
13. *Rejoin one node at a time.* A recovery does not count a node that votes again while it is still in
    the failure set.
14. *After a forced recovery* every frame and hello names the cluster of the configuration's `epoch`
    (`cluster_of_epoch`). Nothing leaves under the old name, and nodes of before are members only as new
    incarnations, which the operator names.
15. *Fetches.* `fetch` names entries that are durable here and no longer in memory. Read them, at most
    `bytes_max` of them, and call `report_entries`; with None when they are gone. Every fetch is answered.

`RaftGroups` (in multi_raft.py) does 1 to 4 for all groups of a node. `collect` gives one block of records;
`durable` releases what was built on it and on all earlier blocks.

`InvariantBroken` from any call ends this group alone; every later call raises it again.
"""

from cmdlog.raft.configuration import Act, Configuration, MemberChange, NodeId
from cmdlog.raft.core import RaftCore
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
)
from cmdlog.raft.messages import Entries, HardState, Message, SnapshotDescriptor
from cmdlog.raft.ready import (
    EntriesWanted,
    PlacedProposals,
    ReadResult,
    Ready,
    Role,
    RoleReason,
    SoftState,
)
from cmdlog.raft.roles.membership import MembershipGuard
from cmdlog.raft.settings import RaftSettings
from cmdlog.raft.state import Franchise, Restored

__all__ = [
    "Act",
    "BadChange",
    "BadConfiguration",
    "ChangeRefused",
    "Completion",
    "Configuration",
    "Drop",
    "Entries",
    "EntriesWanted",
    "Franchise",
    "HardState",
    "InvariantBroken",
    "MemberChange",
    "MembershipGuard",
    "Message",
    "NodeId",
    "PlacedProposals",
    "ProposalRefused",
    "RaftCore",
    "RaftError",
    "RaftSettings",
    "ReadResult",
    "Ready",
    "Refusal",
    "Restored",
    "Role",
    "RoleReason",
    "SnapshotDescriptor",
    "SoftState",
]
