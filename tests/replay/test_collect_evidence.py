"""Evidence of one directory: what a look at heads and the newest segment tells equals what reading everything would tell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.fault_log import FaultLog, read_faults
from cmdlog.wal.files import Files
from cmdlog.wal.format.cluster_record import FaultSet
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_json
from cmdlog.wal.format.segment import segment_name
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.hard_state import COPY_BYTES
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from cmdlog.wal.reader import LogReader
from replay.log.collect_evidence import gather
from replay.log.evidence import BlockRun, NodeEvidence
from tests.wal.logkit import IDENTITY, LOG, NODE, OTHER, create, generations, hard_state
from tests.wal.sim.simfiles import SimFiles

SEGMENTS = 40
VOTERS = frozenset({7, 8, 9})


class Feed:
    """A `Source` of one block per list."""

    def __init__(self, blocks: Sequence[list[bytes]]) -> None:
        self.blocks = list(blocks)
        self.pending_bytes, self.waits, self.lax = 0, True, False

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """The next block."""
        return self.blocks.pop(0) if self.blocks else ()

    def written(self, block: int) -> None:
        """Nothing to do."""

    def durable(self, block: int) -> None:
        """Nothing to do."""

    def failed(self, error: Exception) -> None:
        """Nothing goes wrong here."""
        raise error


def configuration(group: int, index: int, *, term: int = 1, voters: Sequence[int] = (7, 8, 9), **more: object) -> bytes:
    """A CONFIGURATION entry."""
    value = {"voters": list(voters), "learners": [], **more}
    return encode_json(RecordKind.CONFIGURATION, value, partition=group, term=term, index=index)


def entry(group: int, index: int, *, term: int = 1) -> bytes:
    """An entry of about 3 kB, so that a segment of the tests takes a few."""
    text = "".join(chr(33 + (index * 7919 + n * n) % 90) for n in range(3000))
    return encode_json(RecordKind.SCHEMA, {"statements": [text]}, partition=group, term=term, index=index)


def write(files: Files, blocks: Sequence[list[bytes]]) -> None:
    """Opens the node's log, writes these blocks, closes it in order."""
    log = Log.open(files, NODE, generation=generations(5000 + len(files.listdir(LOG))))
    source = Feed(blocks)
    log.start(source, threads=0)
    while source.blocks:
        source.pending_bytes = sum(map(len, source.blocks[0]))
        log.run_turn()
        source.pending_bytes = 0
        log.run_background_work()
    log.close()


def node(rounds: int = 40) -> SimFiles:
    """A log of several segments: two partitions and the cluster group, votes, commit marks."""
    files = SimFiles(1)
    first = [configuration(CLUSTER_GROUP, 1, partitions=2), configuration(0, 1), configuration(1, 1), hard_state(3, 8, 0)]
    create(files, initial=first, segments=SEGMENTS)
    blocks = []
    for n in range(2, rounds + 2):
        blocks.append(
            [entry(n % 2, n // 2 + 1, term=3), encode_commit_mark(partition=n % 2, term=3, commit=n // 2, closed_txn=n)]
        )
    write(files, blocks)
    return files


def segments(files: Files) -> list[str]:
    """Paths of the segments, oldest first."""
    return [f"{LOG}/{name}" for name in files.listdir(LOG) if name.startswith("seg-")]


def first_blocks(files: Files) -> list[int]:
    """Of the segments."""
    return [int(segment.header.first_block) for segment in LogReader(files, NODE).segments]


def folded(files: Files, upto: int) -> GroupStates:
    """Every record up to this block, read."""
    groups = GroupStates()
    for lsn, record in LogReader(files, NODE).read():
        if lsn.block <= upto:
            groups.observe(lsn, record)
    return groups


def check_runs(evidence: NodeEvidence, whole: SimFiles) -> None:
    """Begin and end of every run are what reading the whole log tells of these blocks."""
    for group, of in evidence.groups.items():
        for run in of.runs:
            begin, end = folded(whole, run.from_block - 1).state(group), folded(whole, run.last_block).state(group)
            assert (run.base_index, run.base_term, run.base_checksum) == (begin.last_index, begin.last_term, begin.last_checksum)
            assert (run.last_index, run.last_term, run.last_checksum) == (end.last_index, end.last_term, end.last_checksum)


def bounds(evidence: NodeEvidence, group: int = 0) -> list[tuple[int, int]]:
    """First and last block of the runs."""
    return [(run.from_block, run.last_block) for run in evidence.groups[group].runs]


def test_whole_log_is_one_run() -> None:
    """Identity, ends, commit, votes, configurations and the one run, as the whole log states them; nothing is changed."""
    files = node()
    before = len(files.trace)
    evidence = gather(files, NODE)
    assert len(files.trace) == before
    assert (evidence.refused, evidence.damage, evidence.fault_problem) == (None, (), "")
    assert (evidence.cluster_id, evidence.node_id) == (IDENTITY.cluster_id.hex(), 7)
    assert len(segments(files)) > 4
    assert sorted(evidence.groups) == [0, 1, CLUSTER_GROUP]
    state = folded(files, 1 << 40).by_partition[0]
    of = evidence.groups[0]
    assert (of.term, of.vote, of.commit, of.last_index) == (3, 8, 20, 21)
    assert (of.last_term, of.last_checksum, of.last_txn) == (state.last_term, state.last_checksum, state.last_txn)
    assert [(c.index, c.term, c.voters) for c in of.configurations] == [(1, 1, VOTERS)]
    assert (evidence.groups[CLUSTER_GROUP].partitions, of.partitions) == (2, 0)
    last_block = int(LogReader(files, NODE).last_block)
    assert of.runs == (BlockRun(1, last_block, 0, 0, 0, 21, state.last_term, state.last_checksum, base_commit=0, last_commit=20),)
    assert of.end_known


def test_log_that_was_cut_at_the_front_begins_where_its_oldest_segment_does() -> None:
    """The base is what the head of the oldest segment states."""
    files = node()
    log = Log.open(files, NODE, generation=generations(9000))
    log.start(Feed([]), threads=0)
    from tests.wal.logkit import at

    log.anchors.set("test", at(first_blocks(files)[3]))
    log.run_background_work()
    log.close()
    evidence = gather(files, NODE)
    assert bounds(evidence) == [(first_blocks(files)[0], int(LogReader(files, NODE).last_block))]
    assert evidence.groups[0].runs[0].base_index > 3
    check_runs(evidence, node())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "head", "checkpoint"])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_segment_that_is_missing_or_has_a_bad_head_parts_the_log(which: int, how: str) -> None:
    """The runs go around it; where it is the newest, the log's end is not known. The file is named."""
    whole, files = node(), node()
    path, blocks = segments(files)[which], first_blocks(whole)
    harm(files, path, how)
    evidence = gather(files, NODE)
    assert evidence.refused is None
    assert path in {fault.path for fault in evidence.damage}
    of = evidence.groups[0]
    assert of.end_known == (which != -1)
    last = int(LogReader(whole, NODE).last_block)
    expected = {0: [(blocks[1], last)], 2: [(1, blocks[2] - 1), (blocks[3], last)], -1: [(1, blocks[-1] - 1)]}
    assert bounds(evidence) == expected[which]
    check_runs(evidence, whole)
    assert (of.last_index, of.last_checksum) == (of.runs[-1].last_index, of.runs[-1].last_checksum)


def harm(files: SimFiles, path: str, how: str) -> None:
    """Does this to a segment."""
    if how == "gone":
        files.unlink(path)
    else:
        files.overwrite(path, {"head": 30, "checkpoint": 4096 + 70}[how], b"damage")


def test_damage_in_the_newest_segment_ends_the_run_there() -> None:
    """A block that was known durable is bad: what stands before it counts, and the end is not known."""
    whole, files = node(), node()
    path = segments(files)[-1]
    reader = LogReader(files, NODE)
    place = reader.walk.places[1]
    files.overwrite(path, place.offset + 100, b"damage")
    evidence = gather(files, NODE)
    assert [(fault.path, fault.offset, fault.block) for fault in evidence.damage] == [(path, place.offset, place.header.number)]
    assert bounds(evidence) == [(1, place.header.number - 1)]
    assert not evidence.groups[0].end_known
    check_runs(evidence, whole)


def test_torn_tail_is_no_damage() -> None:
    """What nobody was told of is not missed: the end is known."""
    files = node()
    path, end = segments(files)[-1], LogReader(files, NODE).walk.end
    files.overwrite(path, end, b"CLBK" + bytes(60) + b"torn")
    evidence = gather(files, NODE)
    assert evidence.damage == ()
    assert evidence.groups[0].end_known


def test_lost_hard_state_leaves_the_log_readable() -> None:
    """Both copies bad: terms and votes are those of the log, and whether a newest segment is missing, nothing tells."""
    files = node()
    for offset in (0, COPY_BYTES):
        files.overwrite(f"{LOG}/hardstate", offset + 30, b"damage")
    evidence = gather(files, NODE)
    assert evidence.groups[0].last_index == 21
    assert not evidence.groups[0].end_known
    assert evidence.damage[0].path.endswith("hardstate")


def test_all_segments_lost_leaves_nothing() -> None:
    """An emptied log states no groups, and says so."""
    files = node()
    for path in segments(files):
        files.unlink(path)
    evidence = gather(files, NODE)
    assert (evidence.groups, evidence.refused) == ({}, None)
    assert evidence.damage


def test_fault_log_is_part_of_it_and_its_damage_is_told() -> None:
    """Records as they are; when neither copy can be read, that is said and nothing is taken for them."""
    files = node()
    log = FaultLog.open(files, NODE, IDENTITY)
    record = log.append(failed={8}, term=3)
    assert gather(files, NODE).faults == (record,) == read_faults(files, NODE)
    for name in ("copy-1", "copy-2"):
        files.overwrite(f"{NODE}/faults/{name}", 60, b"damage")
    evidence = gather(files, NODE)
    assert evidence.faults == ()
    assert "fault log" in evidence.fault_problem


def test_newest_failure_set_of_the_log_is_part_of_it() -> None:
    """Also one that is in no fault log yet: the node may have died in between."""
    files, stated = node(), FaultSet(1, (8,), epoch=1, term=3, author=9)
    last = gather(files, NODE).groups[CLUSTER_GROUP].last_index
    assert gather(files, NODE).logged_faults is None
    value = stated.to_json()
    write(files, [[encode_json(RecordKind.FAULTS, value, partition=CLUSTER_GROUP, term=3, index=last + 1)]])
    evidence = gather(files, NODE)
    assert (evidence.logged_faults, evidence.faults) == (stated, ())


def test_what_is_no_node_is_refused_with_the_code_of_the_command_line() -> None:
    """Nothing there 1, foreign segment 11, damaged instance file 10: stated, not raised."""
    files = node()
    files.mkdir("/other")
    create(files, identity=OTHER, directory="/other", segments=SEGMENTS)
    assert gather(files, "/nowhere").exit_code == 1
    files.swap(f"{LOG}/{segment_name(1)}", f"/other/log/{segment_name(1)}")
    foreign = gather(files, NODE)
    assert (foreign.exit_code, foreign.groups) == (11, {})
    assert foreign.refused is not None
    assert segment_name(1) in foreign.refused.what
    files.overwrite("/other/instance.json", 20, b"?")
    assert gather(files, "/other").exit_code == 10


def test_running_node_can_be_looked_at() -> None:
    """Beside an open log that goes on writing, without a lock and without a change."""
    files = node(10)
    log = Log.open(files, NODE, generation=generations(9000))
    source = Feed([])
    log.start(source, threads=0)
    for index in range(7, 30):
        record = entry(0, index, term=3)
        source.blocks, source.pending_bytes = [[record]], len(record)
        log.run_turn()
        source.pending_bytes = 0
        log.run_background_work()
        evidence = gather(files, NODE)
        assert (evidence.groups[0].last_index, evidence.damage) == (index, ())
        assert evidence.groups[0].end_known
    log.close()
    assert load_instance(files, NODE).identity == IDENTITY
