"""The restart table: which row matches what is found, and what becomes of each end that a log can have."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import Corrupt, Foreign, Locked, WrongDirectory
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag, encode_block
from cmdlog.wal.format.segment import decode_segment_header, encode_segment_header
from cmdlog.wal.log import Log
from cmdlog.wal.opening.restart import FACT_NAMES, TABLE, Action, Facts, RestartVerdict, decide
from cmdlog.wal.opening.scan import EndKind, walk_segment
from cmdlog.wal.opening.survey import survey_log
from tests.wal.damagekit import opened, refused, sealed, seg, several
from tests.wal.logkit import (
    IDENTITY,
    LOG,
    NODE,
    OTHER,
    append,
    at,
    create,
    generations,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import Fault, SimFiles

# -- the table itself ----------------------------------------------------------------------------------------------------


def test_exactly_one_row_matches_every_combination_of_facts() -> None:
    """All 512 combinations of facts meet one row each, and every row is met."""
    met = set()
    for values in itertools.product((False, True), repeat=len(FACT_NAMES)):
        met.add(decide(Facts(*values)).verdict)
    assert met == set(RestartVerdict) == {row.verdict for row in TABLE}


def test_every_row_tells_its_story() -> None:
    """A row without a reason would be a guess."""
    assert all(len(row.story) > 40 for row in TABLE)
    assert {row.action for row in TABLE} == set(Action)


# -- clean, unsealed, torn -----------------------------------------------------------------------------------------------


def test_a_sealed_log_is_clean() -> None:
    """A seal vouches for the last records, so opening writes nothing to the segments."""
    files = sealed()
    before = files.read_file(seg(1))
    log, found = opened(files)
    assert log.recovered.verdict is RestartVerdict.CLEAN
    assert found == [1, 2, 3]
    assert files.read_file(seg(1)) == before


def test_an_unsealed_tail_is_rewritten_and_sealed() -> None:
    """Blocks without evidence are written once more; the next opening finds evidence."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1, 2])
    files = files.kill()
    log, found = opened(files)
    assert (log.recovered.verdict, found) == (RestartVerdict.UNSEALED, [1, 2])
    log, found = opened(files.kill())
    assert (log.recovered.verdict, found) == (RestartVerdict.CLEAN, [1, 2])


@pytest.mark.parametrize("cut", range(0, 2 * SECTOR_BYTES, 512))
def test_a_tail_torn_at_any_sector_is_cut(cut: int) -> None:
    """Of a block that was under way, any first sectors may be on disk: it is cut, everything acknowledged stays."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    end = log._tail.offset
    append(log, source, [3], size=8000)
    block = files.read_file(seg(1))[end : end + 2 * SECTOR_BYTES]
    files = files.kill()
    files.overwrite(seg(1), end, block[:cut].ljust(len(block), b"\0"))
    log, found = opened(files)
    assert found == [1]
    assert log.recovered.verdict is (RestartVerdict.TORN if cut else RestartVerdict.UNSEALED)
    if log.recovered.cut is not None:
        assert log.recovered.cut.kept is not None
        assert files.read_file(log.recovered.cut.kept) == block[:cut].rstrip(b"\0")
    assert files.read_file(seg(1))[log._tail.offset :].strip(b"\0") == b""


def test_a_torn_block_before_a_whole_one_is_cut_with_it() -> None:
    """Syncs in flight finish in any order: a hole without evidence is the end, though whole blocks follow it."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    end = log._tail.offset
    first = log._tail.place([b"".join(_payload(2))], flags=BlockFlag.NONE, durable_upto=4)
    second = log._tail.place([b"".join(_payload(3))], flags=BlockFlag.NONE, durable_upto=4)
    assert first is not None
    assert second is not None
    files = files.kill()
    files.overwrite(seg(1), second.offset, second.data)
    log, found = opened(files)
    assert (log.recovered.verdict, found) == (RestartVerdict.TORN, [1])
    assert log.recovered.cut is not None
    assert (log.recovered.cut.offset, log.recovered.cut.block) == (end, first.number)
    log, found = opened(files.kill())
    assert (log.recovered.verdict, found) == (RestartVerdict.CLEAN, [1])


def _payload(number: int) -> list[bytes]:
    from tests.wal.logkit import record

    return [record(number)]


def test_a_hole_before_evidence_is_corrupt() -> None:
    """Zeros where a later block knew of a durable one are damage, not the end (D9)."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    offset = log._tail.offset
    append(log, source, [2, 3])
    files = files.kill()
    files.overwrite(seg(1), offset, bytes(SECTOR_BYTES))
    error = refused(files, Corrupt)
    assert isinstance(error, Corrupt)
    assert (error.path, error.offset, error.block) == (seg(1), offset, 5)


def test_zeros_at_the_end_are_the_end() -> None:
    """An unused rest is no damage, wherever it begins."""
    for count in range(4):
        files = sim()
        log, source = open_log(files)
        append(log, source, range(count))
        assert opened(files.kill())[1] == list(range(count))


def test_the_error_names_partition_index_and_block() -> None:
    """Damage in a body is told down to the record that it hit."""
    files = sealed()
    data = files.read_file(seg(1))
    walk = walk_segment(data, decode_segment_header(data[:SECTOR_BYTES]))
    place = next(p for p in walk.places if p.header.number == 5)
    files.overwrite(seg(1), place.offset + 64 + 40, b"\xff")
    error = refused(files, Corrupt)
    assert isinstance(error, Corrupt)
    assert (error.block, error.partition, error.index) == (5, 2, 2)
    assert "cmdlog log verify" in error.hint


# -- recycled files and stale blocks -------------------------------------------------------------------------------------


def recycled(count: int) -> SimFiles:
    """A log whose newest segment was recycled and holds `count` new blocks before the old life's valid ones."""
    files = sim()
    log, source = open_log(files)
    for number in range(1, 200):
        append(log, source, [number])
        segment = log._tail.segment.header
        if segment.earlier_life > 1 and log._tail.offset == (2 + count) * SECTOR_BYTES:
            return files.kill()
        log.anchors.set("all", at(log.durable_block))
        log._space.prepare_files()
    raise AssertionError


@pytest.mark.parametrize("count", range(1, 6))
def test_old_valid_records_beyond_the_new_tail_are_never_replayed(count: int) -> None:
    """In a recycled file the old life's blocks are told apart by their generation, at every place of the tail (D8)."""
    files = recycled(count)
    newest = max(name for name in files.listdir(LOG) if name.startswith("seg-"))
    data = files.read_file(f"{LOG}/{newest}")
    header = decode_segment_header(data[:SECTOR_BYTES])
    walk = walk_segment(data, header)
    assert walk.end_kind is (EndKind.LEFTOVER if count < 5 else walk.end_kind)
    log, found = opened(files)
    assert found == list(range(found[0], found[-1] + 1))
    assert log.recovered.verdict is RestartVerdict.UNSEALED
    assert len(walk.places) == count + 1


def test_a_block_of_an_earlier_opening_is_stale() -> None:
    """Zeros that a cut wrote may be lost with a lying sync; what resurfaces has a lower opening count and is no successor."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    offset, number = log._tail.offset, log._tail.number
    files = files.kill()
    log, source = open_log(files)
    append(log, source, [2])
    tail = log._tail
    stale, _ = encode_block(
        [_payload(66)[0]],
        flags=BlockFlag.NONE,
        generation=tail.segment.header.generation,
        number=tail.number + 1,
        durable_upto=number - 1,
        chain=12345,
        open_count=2,
    )
    assert tail.offset > offset
    files = files.kill()
    files.overwrite(seg(1), tail.offset, stale)
    log, found = opened(files)
    assert (log.recovered.verdict, found) == (RestartVerdict.STALE, [1, 2])
    assert opened(files.kill())[1] == [1, 2]


def test_a_block_at_anothers_place_is_misplaced() -> None:
    """A whole block of this life and opening where another belongs is a write gone astray: refused (D3)."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1, 2])
    tail = log._tail
    for number, chain in ((tail.number + 3, tail._chain), (tail.number + 1, 999)):
        block, _ = encode_block(
            [_payload(66)[0]],
            flags=BlockFlag.NONE,
            generation=tail.segment.header.generation,
            number=number,
            durable_upto=tail.number - 1,
            chain=chain,
            open_count=tail._open_count,
        )
        back = files.kill()
        back.overwrite(seg(1), tail.offset, block)
        refused(back, Corrupt)


def test_lost_and_misdirected_writes_never_pass() -> None:
    """A write that was reported and never done, or done elsewhere, is found by chain and evidence at the next start (D2, D3)."""
    for fault in (Fault.LOST_WRITE, Fault.MISDIRECTED_WRITE):
        files = sim()
        log, source = open_log(files)
        append(log, source, [1])
        files.fail_at(1, fault)
        append(log, source, [2])
        files.heal()
        append(log, source, [3])
        log.run_background_work()
        refused(files.power_cut(random.Random(0), "none"), Corrupt)


# -- directory, owner ----------------------------------------------------------------------------------------------------


def test_a_second_process_is_locked_out() -> None:
    """The error names the owner, and the first one goes on (H4)."""
    files = sealed()
    log, source = open_log(files)
    with pytest.raises(Locked) as caught:
        open_log(files)
    assert f"process {os.getpid()} on" in str(caught.value)
    append(log, source, [4])
    log.close()
    log, found = opened(files)
    assert found == [1, 2, 3, 4]


def test_wrong_directories_say_what_is_missing() -> None:
    """Missing, empty, half a node, somebody else's files: each is refused in its own words, and nothing is created (H1)."""
    files = SimFiles()
    for path, words in (("/nowhere", "does not exist"), ("/empty", "instance.json is missing")):
        if path == "/empty":
            files.mkdir(path)
        with pytest.raises(WrongDirectory, match=words):
            Log.open(files, path)
    node = sealed()
    node.unlink(f"{NODE}/instance.json")
    with pytest.raises(WrongDirectory, match=r"holds a log but instance\.json is missing"):
        open_log(node)
    with pytest.raises(WrongDirectory, match="neither empty nor a node"):
        create(node)
    with pytest.raises(WrongDirectory, match="already holds a node"):
        create(sealed())
    node = sealed()
    for name in node.listdir(LOG):
        node.unlink(f"{LOG}/{name}")
    with pytest.raises(Corrupt):
        open_log(node)
    foreign = SimFiles()
    foreign.mkdir("/data")
    foreign.write_file_atomic("/data/precious.txt", b"x")
    with pytest.raises(WrongDirectory, match=r"precious\.txt"):
        Log.create(foreign, "/data", IDENTITY)
    assert foreign.read_file("/data/precious.txt") == b"x"


def test_opening_under_another_identity_is_foreign() -> None:
    """Who asks for a certain node gets no other."""
    with pytest.raises(Foreign):
        Log.open(sealed(), NODE, OTHER, generation=generations())


def test_the_survey_reads_no_more_than_heads_and_the_newest_segment() -> None:
    """Opening costs the same whatever the log's length: rot in the middle of an old segment does not even slow it down."""
    files = several()
    files.make_unreadable(seg(1), 4 * SECTOR_BYTES)
    files.make_unreadable(seg(1), 5 * SECTOR_BYTES)
    survey = survey_log(files, NODE, load_instance(files, NODE))
    assert decide(survey.facts).verdict is RestartVerdict.CLEAN


def test_segment_headers_round_trip() -> None:
    """What is decoded from a header sector encodes to the same sector."""
    sector = several().read_file(seg(2))[:SECTOR_BYTES]
    assert encode_segment_header(decode_segment_header(sector)) == sector
