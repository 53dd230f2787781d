"""Files that have changed since they were written: bits, sectors, files lost, cut, renamed or swapped. None passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag
from cmdlog.wal.format.segment import decode_segment_header, segment_name
from cmdlog.wal.hard_state import COPY_BYTES
from cmdlog.wal.opening.scan import walk_segment
from tests.wal.damagekit import opened, refused, sealed, seg, several
from tests.wal.logkit import (
    LOG,
    NODE,
    OTHER,
    SEGMENT_BYTES,
    create,
    hard_state,
    numbers_in,
    open_log,
)
from tests.wal.sim.simfiles import SimFiles

# -- rot -----------------------------------------------------------------------------------------------------------------


def test_rot_in_the_last_acknowledged_block_of_an_idle_log_is_corrupt() -> None:
    """The seal proves that the block before it had been acknowledged."""
    files = sealed()
    data = files.read_file(seg(1))
    walk = walk_segment(data, decode_segment_header(data[:SECTOR_BYTES]))
    last = next(p for p in reversed(walk.places) if not p.header.flags)
    for offset in (0, 20, 63, 64, 100, SECTOR_BYTES - 1):
        damaged = files.kill()
        damaged.flip_bit(seg(1), 8 * (last.offset + offset))
        refused(damaged, Corrupt)


def test_rot_in_the_last_block_of_a_full_segment_is_corrupt_when_it_is_read() -> None:
    """The next segment's name vouches for it; opening need not look, reading does."""
    files = several()
    header = decode_segment_header(files.read_file(seg(3))[:SECTOR_BYTES])
    data = files.read_file(seg(2))
    walk = walk_segment(data, decode_segment_header(data[:SECTOR_BYTES]))
    assert walk.places[-1].header.number == header.first_block - 1
    files.flip_bit(seg(2), 8 * (walk.places[-1].offset + 70))
    log, _ = open_log(files)
    with pytest.raises(Corrupt) as caught:
        numbers_in(log)
    assert caught.value.block == header.first_block - 1


def test_rot_in_the_only_hard_state_is_detected() -> None:
    """One bad copy is healed by the other; two bad copies are refused; so is rot in the record itself."""
    files = sealed()
    one = files.kill()
    one.flip_bit(f"{LOG}/hardstate", 8 * 40)
    log, _ = opened(one)
    assert log.recovered.groups.votes == {0: (1, 7)}
    assert any("hard state" in note for note in log.recovered.notes)
    assert one.read_file(f"{LOG}/hardstate")[:COPY_BYTES] == one.read_file(f"{LOG}/hardstate")[COPY_BYTES:]
    files.flip_bit(f"{LOG}/hardstate", 8 * 40)
    files.flip_bit(f"{LOG}/hardstate", 8 * (COPY_BYTES + 40))
    refused(files, Corrupt)


def test_a_lost_hard_state_file_is_refused() -> None:
    """A node that forgets its vote may vote twice."""
    files = sealed()
    files.unlink(f"{LOG}/hardstate")
    refused(files, Corrupt)


def test_an_unreadable_sector_is_corrupt() -> None:
    """The device's own error names file and offset like any other damage."""
    files = sealed()
    files.make_unreadable(seg(1), 2 * SECTOR_BYTES)
    refused(files, Corrupt)


@dataclass
class Flips:
    """A scenario for single-bit flips."""

    files: SimFiles
    path: str
    wanted: list[int]


def flip(scenario: Flips, bit: int, read: Callable[[SimFiles], list[int]]) -> str:
    """What becomes of one flipped bit: "refused", or "harmless" with every record back."""
    scenario.files.flip_bit(scenario.path, bit)
    back = scenario.files.kill()
    scenario.files.flip_bit(scenario.path, bit)
    try:
        found = read(back)
    except (Corrupt, NewerFormat, Foreign):
        return "refused"
    assert found == scenario.wanted, f"bit {bit} of {scenario.path}: found {found}"
    return "harmless"


def all_of(files: SimFiles) -> list[int]:
    """Everything, from a log whose vote is still known."""
    log, found = opened(files)
    assert log.recovered.groups.votes == {0: (1, 7)}
    return found


FLIP_SHARES = [pytest.param(1021, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.torture)]


"""A prime stride by default, so that all bit positions of all fields are met over the runs; every bit under torture."""


@pytest.mark.parametrize("stride", FLIP_SHARES)
def test_no_single_bit_of_a_sealed_segment_flips_unseen(stride: int) -> None:
    """Every flip of the newest segment, sealed and then killed, is refused or changes nothing that was acknowledged."""
    scenario = Flips(sealed(), seg(1), [1, 2, 3])
    outcomes = [flip(scenario, bit, all_of) for bit in range(0, 8 * SEGMENT_BYTES, stride)]
    used = 7 * SECTOR_BYTES / SEGMENT_BYTES
    assert outcomes.count("refused") > 0.9 * (used - 1 / 8) * len(outcomes)  # the seal's own sector may rot unseen


def test_no_bit_of_the_headers_flips_unseen() -> None:
    """Every bit of the segment's header and of every block's header: refused, but for the seal's own."""
    scenario = Flips(sealed(), seg(1), [1, 2, 3])
    data = scenario.files.read_file(seg(1))
    walk = walk_segment(data, decode_segment_header(data[:SECTOR_BYTES]))
    offsets = [0] + [place.offset for place in walk.places if not place.header.flags & BlockFlag.SEAL]
    for offset in offsets[:4:3] + offsets[-1:]:
        for bit in range(8 * offset, 8 * (offset + 64), 3):
            assert flip(scenario, bit, all_of) == "refused"


@pytest.mark.parametrize("stride", FLIP_SHARES)
@pytest.mark.parametrize("sequence", [1, 2])
def test_no_single_bit_of_an_older_segment_flips_unseen(sequence: int, stride: int) -> None:
    """Flips of a segment that is no more the newest are refused at opening or reading, or hit unused bytes."""
    scenario = Flips(several(), seg(sequence), list(range(1, 13)))
    outcomes = [flip(scenario, bit, all_of) for bit in range(sequence, 8 * SEGMENT_BYTES, stride)]
    assert outcomes.count("refused") > 0.8 * len(outcomes)


@pytest.mark.parametrize("name", ["log/hardstate", "instance.json"])
def test_no_bit_of_the_small_files_flips_unseen(name: str) -> None:
    """Flips of the instance file are refused, those of one copy of the hard state are healed."""
    scenario = Flips(sealed(), f"{NODE}/{name}", [1, 2, 3])
    size = 8 * min(300, len(scenario.files.read_file(scenario.path)))
    outcomes = {flip(scenario, bit, all_of) for bit in range(0, size, 7)}
    assert outcomes == {"harmless"} if name == "log/hardstate" else {"refused"}


# -- files lost, cut, renamed, swapped -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_a_missing_segment_is_named(sequence: int) -> None:
    """First, middle or last: the gap is found before anything is served (D15)."""
    files = several()
    files.unlink(seg(sequence))
    assert segment_name(sequence) in str(refused(files, Corrupt))


def test_a_log_without_any_segment_is_refused() -> None:
    """An existing node never starts empty (H1)."""
    files = several()
    for sequence in (1, 2, 3):
        files.unlink(seg(sequence))
    refused(files, Corrupt)


@pytest.mark.parametrize("sequence", [1, 3])
def test_a_segment_cut_short_at_any_sector_is_refused(sequence: int) -> None:
    """A file has its full length before it gets its name (D14)."""
    for size in [*range(0, SEGMENT_BYTES, SECTOR_BYTES), 1, 4095, 4097, SEGMENT_BYTES - 1, SEGMENT_BYTES + 4096]:
        files = several()
        files.open(seg(sequence)).truncate(size)
        refused(files, Corrupt)


def test_renamed_duplicated_and_swapped_segments_are_foreign() -> None:
    """Name and header must say the same (D16)."""
    for source, target in ((1, 4), (2, 1), (3, 2)):
        files = several()
        files.write_file_atomic(seg(target), files.read_file(seg(source)))
        refused(files, Foreign)
    files = several()
    files.swap(seg(1), seg(2))
    refused(files, Foreign)


def test_a_segment_of_another_life_breaks_the_succession() -> None:
    """A predecessor with right name and ids but another generation is not the file that the next one followed."""
    files = several()
    other = SimFiles()
    create(other, initial=[hard_state(1, 7)], first_generation=77)
    files.overwrite(seg(1), 0, other.read_file(seg(1)))
    error = refused(files, Corrupt)
    assert "followed" in str(error)


@pytest.mark.parametrize("name", ["seg-0000000000000001.wal", "hardstate"])
def test_files_of_another_node_are_foreign(name: str) -> None:
    """Every file says whose it is (D17)."""
    files, other = sealed(), SimFiles()
    create(other, identity=OTHER, initial=[hard_state(1, 7)])
    files.overwrite(f"{LOG}/{name}", 0, other.read_file(f"{LOG}/{name}"))
    error = refused(files, Foreign)
    assert "node 7" in str(error)


def test_a_newer_format_is_named() -> None:
    """A block or segment of a later version is refused as such, before anything else is concluded."""
    import google_crc32c

    files = sealed()
    data = bytearray(files.read_file(seg(1)))
    data[8:10] = (2).to_bytes(2, "little")
    data[108:112] = bytes(4)
    header = bytes(data[:SECTOR_BYTES])
    from cmdlog.wal.format.segment import SEGMENT

    crc = google_crc32c.value(header[: SEGMENT.bytes - 4]).to_bytes(4, "little")
    files.overwrite(seg(1), 0, header[: SEGMENT.bytes - 4] + crc + header[SEGMENT.bytes :])
    refused(files, NewerFormat)
