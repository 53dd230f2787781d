"""Calls that a later entry took out, in a read around damage: left out where that is known, and said where it is not.

One rule: the history and the Spark table give the same calls. No session needed.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.reader import LogReader, read_segment
from replay.history.history import history
from replay.spark.base.options import parse_options
from replay.spark.datasource.source import CallReader
from replay.spark.reading import segment_index
from replay.spark.reading.read_plan import choose
from tests.replay import damage
from tests.replay.historymembers import History
from tests.replay.rig import DEPOSIT
from tests.spark.reading import COLUMNS, NamedRig, plan_of, read, rows_of, txns


class Skipping:
    """A node with a call that an entry takes out some blocks later. Entries of partition 0 are named by index."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        folder.mkdir()
        self.rig = rig = NamedRig(folder, segment_bytes=segment_bytes)
        rig.deposits(4)
        self.batch = rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [0, 6]), (DEPOSIT, [0, 7])], skips=frozenset({1}))
        self.gone = rig.history[-2][0]
        rig.deposits(8)
        self.skip = rig.entry(0, RecordKind.SKIP, {"index": self.batch, "position": 1, "txn_id": rig.tick(1, 0)[0]})
        rig.deposits(8)
        rig.close()
        self.directory = rig.directory
        self.every = [txn for txn, _ in rig.history if txn != self.gone]

    def told(self) -> tuple[list[int], list[str]]:
        """What history and table tell around damage, and the notes."""
        segment_index._kept.clear()
        found = history(RealFiles(), [self.directory], accept_data_loss=True)
        txn_ids = [int(call["txn_id"]) for call in found.calls]
        assert txns(rows_of(plan_of(self.directory, failOnDataLoss="false"))) == txn_ids
        return txn_ids, found.notes


def damage_block_of(directory: str, index: int) -> None:
    """The block that holds that entry of partition 0."""
    reader = LogReader(RealFiles(), directory)
    ends = [*(int(one.header.first_block) - 1 for one in reader.segments[1:]), int(reader.last_block)]
    for segment, end in zip(reader.segments, ends, strict=True):
        for block in read_segment(RealFiles(), segment, upto=end):
            if any(r.is_entry and (r.partition, r.index) == (0, index) for _, r in block.records()):
                damage.flip(block.path, block.offset + 100)
                return


def unreadable(index: int) -> str:
    """The note about that entry."""
    unknown = f"calls up to entry {index - 1} that were skipped by the unreadable entries are listed anyway"
    return f"partition 0: entries {index} to {index} cannot be read; {unknown}"


@pytest.mark.parametrize("segment_bytes", [32 << 10, 1 << 20], ids=["many", "one"])
def test_call_is_left_out_by_an_entry_behind_damage(tmp_path: Path, segment_bytes: int) -> None:
    """Between the batch and the entry that takes its call out a block is damaged; that there may be others is said."""
    node = Skipping(tmp_path / "n", segment_bytes)
    assert node.told() == (node.every, [])
    damage_block_of(node.directory, node.batch + 2)
    found, notes = node.told()
    assert node.gone not in found
    assert len(found) == len(node.every) - 3
    assert unreadable(node.batch + 2) in notes


@pytest.mark.parametrize("segment_bytes", [32 << 10, 1 << 20], ids=["many", "one"])
def test_entry_that_takes_a_call_out_is_lost_and_that_is_said(
    tmp_path: Path, segment_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is told; a note, or a warning, names the entries that may have taken it out."""
    node = Skipping(tmp_path / "n", segment_bytes)
    damage_block_of(node.directory, node.skip)
    found, notes = node.told()
    assert found == sorted([*node.every, node.gone])
    assert unreadable(node.skip) in notes
    options = parse_options({"path": node.directory, "failOnDataLoss": "false"})
    CallReader(options, COLUMNS).partitions()
    unknown = f"calls up to entry {node.skip - 1} that were skipped by the unreadable entries are returned anyway"
    assert f"partition 0: entries {node.skip} to {node.skip} are in no log at hand; {unknown}" in caplog.text


def test_entry_of_one_log_takes_out_a_call_of_another(tmp_path: Path) -> None:
    """The log that counts begins behind the batch, which is read from another node's; the entry stands behind that one's part."""
    cluster = History(tmp_path / "c")
    for _ in range(3):
        cluster.deposits(0)
        cluster.spread(0)
    batch = cluster.deposits(0)
    assert batch is not None
    assert cluster.spread(0)
    assert cluster.add_node(4)
    skip = {"index": batch.index, "position": 1, "txn_id": cluster._tick(1, 0, 1)[0]}
    assert cluster.control(0, RecordKind.SKIP, skip) is not None
    assert cluster.spread(0)
    assert cluster.elect(0, 4)
    cluster.deposits(0)
    cluster.spread(0)
    tail = cluster.deposits(0)  # of the fourth node alone: so its log has the best end
    assert tail is not None
    directories = cluster.finish()
    wants = choose(parse_options({"paths": orjson.dumps(directories).decode()})).wants
    assert {log.directory: sorted(of) for log, of in wants} == {directories[3]: [0], directories[0]: [0, 1]}
    every = sorted(txn for _, _, txn in cluster.acknowledged)
    gone = batch.calls[1][0]
    assert gone in every
    assert txns(read(*directories)) == [txn for txn in every if txn != gone]
    found = history(RealFiles(), directories)
    told = [int(call["txn_id"]) for call in found.calls]
    assert (told, found.notes) == ([*(txn for txn in every if txn != gone), *(call[0] for call in tail.calls)], [])
