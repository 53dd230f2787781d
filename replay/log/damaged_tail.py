"""The end of a log whose newest segment is damaged before it: what the blocks after the place say, and snapshots taken there.

One rule: an end is known only where something that was written after the damage states it. A later entry of the group does;
so does a snapshot whose `log_block` lies there, and that the log names there: no later entry of its partition comes before that
block, and what its manifest states of the node (code, configuration, environment) was in force then.

The lost blocks may also have held a configuration, which would change the voters. A snapshot after them that names the same
configuration as the log before them says that there was none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cmdlog.wal.format.block import BadBlock, BlockFlag
from cmdlog.wal.format.control_record import SnapshotMark
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.group_state import GroupState, GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.opening.scan import BlockAt, SegmentWalk, read_block, records_at
from snapshot.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Beyond:
    """The end of a log that is damaged before it: the fold of what can be read, and the groups whose end it shows."""

    end: GroupStates
    known: Mapping[int, int]  # group -> last index that may lie in the damaged place; 0 when nothing of the group does


def behind_damage(data: bytes, walk: SegmentWalk, snapshots: Iterable[Manifest]) -> Beyond | None:
    """What the blocks after a damaged place say, when the last of all blocks is there: a seal, with none of this life after it.

    A group with an entry after the place ends at its last one. The last entry of any other may have been in the place, unless a
    snapshot shows it. Raises: BadRecord.
    """
    places = _last_stretch(data, walk)
    if not places or not places[-1].header.flags & BlockFlag.SEAL or places[-1].header.number != walk.later[-1].header.number:
        return None
    front, end = folded(data, walk.places), folded(data, [*walk.places, *places])
    known: dict[int, int] = {}
    marked = set()  # snapshots that the log names after the place: their block numbers are of this life
    for place in places:
        for _, record in records_at(data, place):
            if record.is_entry and record.partition not in known:
                goes_on = record.index <= front.state(record.partition).last_index + 1
                known[record.partition] = 0 if goes_on else record.index - 1
            elif record.kind is RecordKind.SNAPSHOT_MARK:
                mark = SnapshotMark.from_record(record)
                marked.add((record.partition, record.index, mark.checksum, mark.log_block))
    late = [
        m
        for m in snapshots
        if m.log_block >= places[0].header.number and (m.partition, m.index, m.checksum, m.log_block) in marked
    ]
    for m in late:
        before = front.state(m.partition)
        stands = m.index == before.last_index and m.checksum == before.last_checksum
        if _same_voters(m, before) and (m.index >= known[m.partition] if m.partition in known else stands):
            known[m.partition] = 0
    if CLUSTER_GROUP not in known and any(_same_node(m, front.state(CLUSTER_GROUP)) for m in late):
        known[CLUSTER_GROUP] = 0
    return Beyond(end, known)


def _last_stretch(data: bytes, walk: SegmentWalk) -> list[BlockAt]:
    """The last of the good blocks after the place, as far back as each continues the one before."""
    places: list[BlockAt] = []
    for place in walk.later:
        try:
            read_block(data, place.offset, walk.segment)
        except BadBlock:
            places = []
            continue
        before = places[-1].header if places else None
        if before is not None and (place.header.number, place.header.chain) != (before.number + 1, before.checksum):
            places = []
        places.append(place)
    return places


def _same_voters(m: Manifest, before: GroupState) -> bool:
    """Whether no configuration came between the log before the place and the snapshot."""
    return bool(before.configurations) and m.epoch <= before.configurations[-1].index


def _same_node(m: Manifest, cluster: GroupState) -> bool:
    """Whether the node had the same code, configuration and environment when the snapshot was taken."""
    newest = max(cluster.catalogs, default=0)  # versions ascend, and old ones are dropped
    code = cluster.catalogs[newest].value.get("hash") if newest else None
    there = m.catalogs.get(str(newest), {}).get("hash")
    environment = cluster.environment.value if cluster.environment is not None else None
    return (max(map(int, m.catalogs), default=0), there) == (newest, code) and (m.configuration, m.environment) == (
        cluster.configuration,
        environment,
    )


def folded(data: bytes, places: Sequence[BlockAt]) -> GroupStates:
    """The state after these blocks, of which the first is a head. Raises: BadRecord."""
    return GroupStates.fold(found for place in places for found in records_at(data, place))
