"""The groups of a node at its start: consensus gets exactly what is durable."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence

import orjson
import pytest

from cmdlog.cluster import restored_groups
from cmdlog.cluster.entry_records import EntryBlocks
from cmdlog.cluster.genesis import Genesis
from cmdlog.cluster.restored_groups import Place, restore_groups
from cmdlog.raft import Configuration, InvariantBroken, PlacedProposals, RaftCore, RaftSettings
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.record import BadRecord, RecordKind, encode_commit_mark, encode_empty, encode_record
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Index, Lsn, Term
from cmdlog.wal.log import Log
from replay.log.source import source_of
from tests.cluster.entrykit import batch
from tests.wal.logkit import generations, hard_state
from tests.wal.sim.simfiles import SimFiles

DIRECTORY = "/node"
VOTERS = Configuration(voters=nodes((1, 2, 3)))
WIDER = Configuration(voters=nodes((1, 2, 3)), learners=nodes((4,)))
GENESIS = Genesis((1, 2, 3), {"partitions": 2, "slots": [], "key_policy": {}}, {"version": 1, "hash": ""}, {}, {"statements": []})
FIRST = 3  # a partition's first entry after those of the genesis
PADDING = "x" * 3000  # a few of such batches fill a segment


class BlockSource:
    """Gives the log one block after the other."""

    def __init__(self, blocks: Sequence[Sequence[bytes]]) -> None:
        self.waiting = deque(blocks)
        self.waits, self.lax = True, False

    @property
    def pending_bytes(self) -> int:
        return sum(len(record) for block in self.waiting for record in block)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        return self.waiting.popleft() if self.waiting else []

    def written(self, block: int) -> None:
        pass

    def durable(self, block: int) -> None:
        pass

    def failed(self, error: WalError) -> None:
        raise error


class Member:
    """A node's log, written by hand, and its groups after a start."""

    def __init__(self, *blocks: Sequence[bytes], initial: Sequence[bytes] = ()) -> None:
        """`initial`: what the log begins with, if not as a new cluster's."""
        self.files = SimFiles(1)
        Log.create(
            self.files, DIRECTORY, Identity(b"cluster-number-1", 2, b"life-one"), segment_bytes=32 << 10, segments=16,
            reserve_bytes=4096, initial=initial or GENESIS.records(), generation=generations(),
        )  # fmt: skip
        self.first_blocks: list[int] = []
        self.write(*blocks)

    def write(self, *blocks: Sequence[bytes], keep_from: int = 1) -> None:
        """Appends blocks; segments before the block `keep_from` are recycled."""
        log = Log.open(self.files, DIRECTORY, generation=generations(2000 + 10 * len(self.first_blocks)))
        source = BlockSource(blocks)
        log.start(source, threads=0)
        while source.waiting:
            assert log.run_turn(), "no room"
            log.anchors.set("test", Lsn(BlockNumber(keep_from), 0))
            log.run_background_work()
        self.first_blocks = [int(block) for block in log.first_blocks()]
        log.close()

    def restore(self, run: Mapping[int, Place] | None = None) -> tuple[Mapping[int, RaftCore], EntryBlocks]:
        """The groups after a start, and where their entries lie."""
        log = Log.open(self.files, DIRECTORY, generation=generations(5000))
        try:
            groups, blocks = restore_groups(
                2, source_of(log), log.recovered.groups, run or {}, settings=RaftSettings(), rng=random.Random(7)
            )
            return {int(group): core for group, core in groups.cores.items()}, blocks
        finally:
            log.close()

    def blocks(self) -> dict[int, int]:
        """Index -> the last block that has an entry of partition 0 with it."""
        log = Log.open(self.files, DIRECTORY, generation=generations(5000))
        try:
            found = log.read()
            return {int(record.index): int(lsn.block) for lsn, record in found if record.is_entry and record.partition == 0}
        finally:
            log.close()

    def core(self, run: Mapping[int, Place] | None = None) -> RaftCore:
        """Partition 0 after a start."""
        return self.restore(run)[0][0]


def mark(commit: int, *, term: int = 1, group: int = 0) -> bytes:
    """A commit mark."""
    return encode_commit_mark(partition=group, term=term, commit=commit, closed_txn=0)


def run_of(first: int, last: int, *, term: int = 1, group: int = 0, param: str = "") -> list[list[bytes]]:
    """The batches first..last, a block each."""
    return [[batch(index, term=term, group=group, param=param)] for index in range(first, last + 1)]


def configuration(index: int, members: Configuration, *, term: int = 1) -> bytes:
    """A configuration entry of partition 0."""
    return encode_record(RecordKind.CONFIGURATION, members.to_bytes(), partition=0, term=term, index=index)


def terms(core: RaftCore) -> dict[int, int | None]:
    """Index -> term, of the base and all entries after it."""
    return {index: core.log.term_at(index) for index in range(core.log.base, core.log.last + 1)}


def payloads(core: RaftCore) -> list[bytes]:
    """Of all entries after the base."""
    return core.log.slice(core.log.base + 1, core.log.last).payloads


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two entries are kept in memory behind what is committed."""
    monkeypatch.setattr(restored_groups, "KEPT_ENTRIES", 2)
    return monkeypatch


def test_a_new_member_begins_with_the_genesis() -> None:
    """Every group, with all of it committed, nobody voted for and nobody known to lead."""
    cores, _ = Member().restore()
    assert sorted(cores) == [0, 1, CLUSTER_GROUP]
    for group, core in cores.items():
        end = 4 if group == CLUSTER_GROUP else 2
        assert (core.id, core.term, core.vote, core.leader) == (2, 1, None, None)
        assert (core.log.last, core.log.last_term, core.log.commit) == (end, 1, end)
        assert core.configuration == VOTERS


def test_entries_beyond_what_is_committed_are_kept() -> None:
    """They were acknowledged: terms, kinds and payloads as written, durable, not committed."""
    entries = [batch(3), encode_empty(partition=0, term=2, index=4), configuration(5, WIDER, term=2), batch(6, term=2)]
    core = Member(entries[:1], entries[1:]).core()
    assert terms(core) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    found = core.log.slice(Index(3), Index(6))
    assert found.kinds == bytes([0, KIND_EMPTY, KIND_CONFIGURATION, 0])
    assert found.payloads == [entries[0], b"", WIDER.to_bytes(), entries[3]]
    assert (core.log.stable, core.log.commit) == (6, 2)
    assert core.configuration == WIDER


def test_term_and_vote_are_those_of_the_log() -> None:
    """A vote is never given twice in a term; an entry of a later term ends it."""
    member = Member([hard_state(7, 3)], run_of(3, 3)[0])
    assert (member.core().term, member.core().vote) == (7, 3)
    member.write([batch(4, term=8)])
    assert (member.core().term, member.core().vote) == (8, None)


def test_a_mark_says_what_is_committed() -> None:
    """Of its own group; entries behind it are still in memory."""
    cores, _ = Member([batch(3), batch(4), batch(5), batch(3, group=1), mark(4)]).restore()
    assert (cores[0].log.commit, cores[0].log.last, cores[0].log.base) == (4, 5, 1)
    assert (cores[1].log.commit, cores[1].log.last) == (2, 3)


def test_what_a_state_holds_is_committed() -> None:
    """Whether a mark says so or not: a commit that a leader told, and that was run here, is not run again as if it were new."""
    member = Member([batch(3), batch(4), batch(5), mark(3)])
    assert member.core({0: Place(5, 1)}).log.commit == 5
    assert member.core({0: Place(4, 1)}).log.commit == 4
    assert member.core({1: Place(2, 1)}).log.commit == 3


def test_a_state_behind_the_mark_takes_nothing_back() -> None:
    """The state is saved now and then; the mark is newer."""
    assert Member([batch(3), batch(4), mark(4)]).core({0: Place(3, 1)}).log.commit == 4


def test_what_is_committed_and_not_run_is_handed_out(kept: pytest.MonkeyPatch) -> None:
    """A state far behind the mark, such as of a site that stood still: its next entry is the first after the base."""
    core = Member(*run_of(3, 9), [mark(9)]).core({0: Place(4, 1)})
    assert core.log.commit == 9
    assert core.log.base <= 4
    assert core.log.handed <= 4


def test_a_state_beyond_the_log_is_refused() -> None:
    """The log has lost what was acknowledged: this node must not vote."""
    with pytest.raises(InvariantBroken, match="commit 50, last 4"):
        Member([batch(3), batch(4)]).core({0: Place(50, 1)})


def test_a_state_far_beyond_the_log_is_refused(kept: pytest.MonkeyPatch) -> None:
    """Also when not even the base is in the log."""
    with pytest.raises(BadRecord, match="does not reach back to entry 48 of group 0"):
        Member([batch(3), batch(4)]).core({0: Place(50, 1)})


def test_entries_that_a_later_term_replaced_are_gone() -> None:
    """All from the first replaced one on, also those that nothing came for."""
    member = Member(*run_of(3, 6), [batch(4, term=2, param="new")])
    cores, blocks = member.restore()
    assert terms(cores[0]) == {1: 1, 2: 1, 3: 1, 4: 2}
    assert payloads(cores[0])[1:] == [batch(3), batch(4, term=2, param="new")]
    lies = member.blocks()
    assert [blocks.block_of(0, index) for index in (3, 4, 5, 6)] == [lies[3], lies[4], None, None]
    assert lies[4] > lies[6]


def test_a_replaced_configuration_is_not_in_force() -> None:
    """Members follow from the log alone."""
    member = Member([configuration(3, WIDER)], [batch(3, term=2)])
    assert member.core().configuration == VOTERS


@pytest.mark.parametrize("commit", [3, 4, 5, 6])
def test_the_configuration_at_the_base_is_the_last_one_there(kept: pytest.MonkeyPatch, commit: int) -> None:
    """Whether its entry lies before the base, at it, or after it."""
    member = Member([batch(3), configuration(4, WIDER), batch(5), batch(6)], [mark(commit)])
    core = member.core()
    assert core.log.base == max(1, commit - 2)
    assert core.configuration == WIDER
    assert core.log.base >= 4 or core.log.configuration_at(Index(3)) == VOTERS
    assert core.log.configuration_at(Index(4)) == WIDER


def test_a_group_begins_a_little_before_what_is_committed(kept: pytest.MonkeyPatch) -> None:
    """The base has the term of its entry, also after replacements."""
    member = Member(*run_of(3, 8), [batch(6, term=2), batch(7, term=3), batch(8, term=3), batch(9, term=4)], [mark(8, term=3)])
    core = member.core()
    assert (core.log.base, core.log.base_term) == (6, 2)
    assert terms(core) == {6: 2, 7: 3, 8: 3, 9: 4}
    assert (core.log.commit, core.log.handed) == (8, 6)


def test_a_replacement_from_before_the_base_takes_all_after_it(kept: pytest.MonkeyPatch) -> None:
    """What had been read after the base was void. The other group's entry makes the start read that."""
    kept.setattr(restored_groups, "KEPT_ENTRIES", 0)
    void = [batch(index) for index in range(3, 10)]
    member = Member([*void, batch(3, group=1)], [batch(5, term=2), batch(6, term=2)], [mark(6, term=2)])
    assert terms(member.core()) == {6: 2}


@pytest.mark.parametrize("first", [4, 5, 9])
def test_a_hole_in_the_log_is_refused(first: int) -> None:
    """Between the genesis or an entry, and what comes after it."""
    with pytest.raises(BadRecord, match=f"group 0 ends at entry {first + 1}, and the log has no entry 3 before it"):
        Member(*run_of(first, first + 1)).restore()
    with pytest.raises(BadRecord, match=f"ends at entry {first + 2}, and the log has no entry 4 before it"):
        Member(*run_of(3, 3), *run_of(first + 1, first + 2)).restore()


def test_only_the_newest_segments_are_read_when_no_group_needs_more(kept: pytest.MonkeyPatch) -> None:
    """From the newest one whose head is at or below every base; entries before it have no block that anybody asks for."""
    last = 30
    member = Member()
    groups = (0, 1, CLUSTER_GROUP)
    for index in range(3, last + 1):
        records = [batch(index + 2 * (group == CLUSTER_GROUP), group=group, param=PADDING[:1200]) for group in groups]
        marks = [mark(index + 2 * (group == CLUSTER_GROUP), group=group) for group in groups]
        member.write([*records, *marks])
    assert len(member.first_blocks) > 3
    cores, blocks = member.restore()
    assert [(core.log.base, core.log.commit) for core in cores.values()] == [(28, 30), (28, 30), (30, 32)]
    held = blocks.block_of(0, 1)
    assert held in member.first_blocks or held - 1 in member.first_blocks  # type: ignore[operator]
    assert held > member.first_blocks[1]  # type: ignore[operator]


def test_acknowledged_entries_of_a_quiet_group_are_found_far_back(kept: pytest.MonkeyPatch) -> None:
    """Other groups fill segments meanwhile: their bases alone do not say from where the log is read."""
    busy = [[batch(index, param=PADDING), mark(index)] for index in range(3, 33)]
    member = Member(*run_of(3, 5, group=1), *busy)
    assert len(member.first_blocks) > 2
    cores, _ = member.restore()
    assert terms(cores[1]) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert (cores[0].log.base, cores[0].log.commit) == (30, 32)


def test_a_quiet_group_does_not_make_the_whole_log_be_read(kept: pytest.MonkeyPatch) -> None:
    """All that it has is committed and marked: it begins at a segment's head, as far back as the busy group is kept."""
    busy = [[batch(index, param=PADDING), mark(index)] for index in range(3, 33)]
    member = Member(*run_of(3, 5, group=1), [mark(5, group=1)], *busy)
    assert len(member.first_blocks) > 3
    cores, blocks = member.restore()
    assert (cores[1].log.base, cores[1].log.last, cores[1].log.commit) == (5, 5, 5)
    assert (cores[0].log.base, cores[0].log.commit) == (30, 32)
    assert blocks.block_of(0, 3) > member.first_blocks[1], "what came before is not read"  # type: ignore[operator]


def recycled(*first: Sequence[bytes], busy: int = 40) -> Member:
    """These blocks lie in segments that are gone; partition 1 has filled those that are there."""
    filler = [[batch(index, group=1, param=PADDING), mark(index, group=1)] for index in range(3, 3 + busy)]
    member = Member(*first)
    member.write(*filler, keep_from=len(first) + 12)
    assert member.first_blocks[0] > len(first) + 2
    return member


def test_a_group_whose_entries_are_recycled_begins_at_its_end() -> None:
    """All of them are committed: the head of the oldest segment states index, term and members."""
    member = recycled(*run_of(3, 5), [configuration(6, WIDER, term=3), mark(6, term=3)])
    core = member.core()
    assert terms(core) == {6: 3}
    assert (core.log.commit, core.configuration) == (6, WIDER)
    member.write([batch(7, term=4)])
    assert terms(member.core()) == {6: 3, 7: 4}


def test_recycled_entries_that_were_acknowledged_are_missed() -> None:
    """Only up to the fourth entry they are known committed: a start that forgot the others could lose them for the cluster."""
    member = recycled(*run_of(3, 6), [mark(4)])
    with pytest.raises(BadRecord, match="group 0 ends at entry 6, and the log has no entry 5 before it"):
        member.restore()
    member.write([batch(7)])
    with pytest.raises(BadRecord, match="group 0 ends at entry 7, and the log has no entry 5 before it"):
        member.restore()


def test_recycled_entries_that_a_state_holds_are_not_missed() -> None:
    """A state is as good as a mark, for the base too."""
    core = recycled(*run_of(3, 6), [mark(4)]).core({0: Place(6, 1)})
    assert terms(core) == {6: 1}
    assert core.log.commit == 6


@pytest.mark.parametrize("first", [3, 5])
def test_recycled_entries_that_were_replaced_are_not_missed(first: int) -> None:
    """What is left begins in the middle of void entries; the committed ones and what replaced the others are all there."""
    void = configuration(6, WIDER)
    member = recycled(*run_of(3, 5), [void], [mark(4)] if first == 5 else [mark(2)])
    member.write([batch(7)], [batch(index, term=2) for index in range(first, 9)], [mark(8, term=2) if first == 3 else mark(4)])
    core = member.core()
    assert terms(core) == ({6: 2, 7: 2, 8: 2} if first == 3 else {4: 1, 5: 2, 6: 2, 7: 2, 8: 2})
    assert core.log.commit == (8 if first == 3 else 4)
    assert core.configuration == VOTERS


# -- a log that a copy has begun -------------------------------------------------------------------------------------------------


def copied(*blocks: Sequence[bytes], life: bytes = b"life-one") -> Member:
    """Every group begins at its 50th entry, of term 4; `life` is the incarnation that was admitted."""
    places = {str(group): [4, 48] for group in (0, 1, CLUSTER_GROUP)}
    stated = ClusterMember.from_json(
        {"node": 2, "incarnation": life.hex(), "peer": "h:1", "client": "", "state": "admitted", "admitted": places}
    )
    groups = GroupStates()
    for group in (0, 1, CLUSTER_GROUP):
        groups.by_partition[group] = GroupState(
            term=6, commit=50, commit_term=4, last_index=50, last_term=4,
            configurations=[Stated(49, 4, orjson.loads(WIDER.to_bytes()))],
            members={2: Stated(47, 4, stated.to_json())} if group == CLUSTER_GROUP else {},
        )  # fmt: skip
    return Member(*blocks, initial=groups.checkpoints(oldest_block=1))


def test_a_copied_group_begins_where_its_state_ends() -> None:
    """There is no entry before it; members, term and commit are those of the copy."""
    core = copied().core({0: Place(50, 4)})
    assert terms(core) == {50: 4}
    assert (core.log.commit, core.configuration, core.term) == (50, WIDER, 6)


def test_entries_follow_the_copy() -> None:
    """What was written since, committed or not."""
    member = copied([batch(51, term=6)], [batch(52, term=6), mark(51, term=6)])
    core = member.core({0: Place(50, 4)})
    assert terms(core) == {50: 4, 51: 6, 52: 6}
    assert core.log.commit == 51


def test_a_life_that_was_admitted_votes_by_that_alone() -> None:
    """Consensus gets the places of its admission at every start; another life of the disk gets none."""
    assert {group: core.admitted for group, core in copied().restore()[0].items()} == {
        group: PlacedProposals(Index(48), Term(4)) for group in (0, 1, CLUSTER_GROUP)
    }
    assert {core.admitted for core in copied(life=b"life-six").restore()[0].values()} == {None}
    assert Member().core().admitted is None
