"""The files of a new log: its first segment, the space of the others, and its hard state.

One rule: on return everything is durable, names too; an error or a crash on the way leaves a folder that is no log yet.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from cmdlog.wal.directory.instance import Instance
from cmdlog.wal.errors import DiskFull, RecordsTooLarge
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.block import BlockFlag, block_bytes, encode_block
from cmdlog.wal.format.segment import SegmentHeader, free_name, reserve_file, segment_name, write_zeros
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.hard_state import HardStateValues, create_hardstate
from cmdlog.wal.ids import BlockNumber
from cmdlog.wal.opening.survey import identity_text
from cmdlog.wal.os_errors import no_room
from cmdlog.wal.writing.tail import encode_head


def random_generation() -> int:
    """A generation that no earlier life of any file had; never 0 or 1, which mean "zeros" and "unknown"."""
    return secrets.randbits(63) + 2


def create_log_files(
    files: Files, log_dir: str, instance: Instance, initial: Sequence[bytes], *, generation: int, whole_ring: bool
) -> None:
    """Makes a log that begins with the records of `initial`; `whole_ring` takes the space of all its segments.

    Raises: RecordsTooLarge, DiskFull, WriteFailed.
    """
    groups = _write_first_segment(files, log_dir, instance, initial, generation)
    if whole_ring:
        _reserve_ring(files, log_dir, instance)
    hard = HardStateValues(identity_text(instance.identity), durable=1 + bool(initial), votes=dict(groups.votes))
    create_hardstate(files, log_dir, hard)
    files.fsync_dir(log_dir)


def _reserve_ring(files: Files, log_dir: str, instance: Instance) -> None:
    """Takes the space of every segment but the first. Raises: DiskFull, and nothing of it is left."""
    made: list[str] = []
    try:
        for number in range(instance.segments - 1):
            path = os.path.join(log_dir, free_name(number) + TEMP_SUFFIX)
            reserve_file(files, path, instance.segment_bytes)
            made.append(path)
    except DiskFull as error:
        for path in [*made, os.path.join(log_dir, segment_name(1))]:
            files.unlink(path)
        ring_bytes = instance.segments * instance.segment_bytes
        what = f"the log takes {ring_bytes} bytes ({instance.segments} segments of {instance.segment_bytes})"
        raise no_room(what, instance.segment_bytes, f"the volume of {log_dir}") from error


def _write_first_segment(
    files: Files, log_dir: str, instance: Instance, initial: Sequence[bytes], generation: int
) -> GroupStates:
    """Segment 1: an empty checkpoint, the initial records, a seal. Content and name durable but for the folder's sync."""
    identity, path = instance.identity, os.path.join(log_dir, segment_name(1))
    if (size := block_bytes(initial)) > min(instance.segment_bytes // 2, 64 << 20):
        raise RecordsTooLarge(f"initial records of {size} bytes; half a segment is {instance.segment_bytes // 2}")
    header = SegmentHeader(
        identity.cluster_id, identity.incarnation, identity.node_id, 1, generation, 0, 0, 1, BlockNumber(1),
        instance.segment_bytes, 0,
    )  # fmt: skip
    data, chain = encode_head(header, [], durable_upto=0)
    groups = GroupStates()
    for number, records in ((2, initial), (3, ())) if initial else ():
        groups.observe_block(number, records)
        flags = BlockFlag.NONE if records else BlockFlag.SEAL
        block, chain = encode_block(
            records, flags=flags, generation=generation, number=number, durable_upto=number - 1, chain=chain, open_count=1
        )
        data += block
    write_zeros(files, path, instance.segment_bytes)
    file = files.open(path)
    try:
        file.pwrite(data, 0)
        file.fdatasync()
    finally:
        file.close()
    return groups
