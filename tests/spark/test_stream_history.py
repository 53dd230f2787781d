"""A stream's checkpoint and the log that it is resumed on."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild as recover
from replay.spark.datasource import stream_history
from replay.spark.datasource.stream_history import OtherHistory
from tests.replay.historycluster import Cluster
from tests.replay.ledgers import SMALL, Versions, logged_calls
from tests.spark.reading import made
from tests.spark.spark_nodes import SHOP, make_node
from tests.spark.test_offsets import drained, given, stream_of, stream_of_idle_partition

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is said once for a process."""
    monkeypatch.setattr(stream_history, "_warned", set())


@pytest.fixture(scope="module")
def shop(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with some hundred calls; nobody changes it."""
    return make_node(versions, tmp_path_factory.mktemp("shop") / "node")


def recovered(node: Path, out: Path, until: int | None = None) -> str:
    """`cmdlog recover NODE --until T --to OUT`."""
    recover(make_plan(RealFiles(), str(node), PAST, until=until), RealFiles(), str(out))
    return str(out)


def go_on(versions: Versions, directory: str, calls: int) -> None:
    """More calls, as different as calls are."""
    with cmdlog.open(directory, versions.load("shop_v1", SHOP), **SMALL) as node:
        for n in range(calls):
            node.call("deposit", account=n % 8, amount=1000 + n)


def test_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """By both names, before and in the middle of a micro-batch, also where entries have the same numbers."""
    one, other = made(tmp_path / "one", 5), made(tmp_path / "other", 9)
    end = stream_of(one.directory).latestOffset({}, ALL)
    refused = rf"checkpoint is of cluster {end['cluster']}, and {other.directory} is of cluster \w+\n.*new checkpointLocation"
    with pytest.raises(OtherHistory, match=refused):
        stream_of(other.directory).latestOffset(end, ALL)
    for start in ({}, end):
        with pytest.raises(OtherHistory, match=refused):
            stream_of(other.directory).partitions(start, end)


@pytest.mark.slow
def test_log_recovered_to_an_earlier_moment_is_refused(shop: Path, versions: Versions, tmp_path: Path) -> None:
    """Short of what was given out, and when other calls have come past it: partition, entry and both checksums are named."""
    offset = stream_of(str(shop)).latestOffset({}, ALL)
    earlier = logged_calls(shop)[60].txn_id
    out = recovered(shop, tmp_path / "out", earlier)
    with pytest.raises(
        OtherHistory, match=r"another history than .*out: for partition \d .* the log ends at entry \d+: it was recov"
    ):
        stream_of(out).latestOffset(offset, ALL)
    go_on(versions, out, 60)
    told = (
        r"transaction \d+ in entry (\d+) \(term \d+, checksum [0-9a-f]{8}\), and the log holds (term \d+, checksum|no calls in)"
    )
    with pytest.raises(OtherHistory, match=told):
        stream_of(out).latestOffset(offset, ALL)
    with pytest.raises(OtherHistory, match="another history"):
        stream_of(out, failOnDataLoss="false").partitions({}, offset)


@pytest.mark.slow
def test_log_recovered_to_its_end_is_resumed(shop: Path, versions: Versions, tmp_path: Path) -> None:
    """The blocks of what was given out are gone; the head of the recovered log states its last entry. Each call comes once."""
    before, offset = drained(stream_of(str(shop)), random.Random(1), 50, {})
    out = recovered(shop, tmp_path / "out")
    assert stream_of(out).latestOffset(offset, ALL) == offset
    go_on(versions, out, 40)
    after, _ = drained(stream_of(out), random.Random(1), 50, offset)
    assert len(after) == 40
    assert min(after) > max(before)


def test_every_node_of_the_cluster_holds_the_checkpoint(tmp_path: Path) -> None:
    """What one replica gave out, another one goes on from; a copy that lags behind is refused rather than waited for."""
    cluster = Cluster(tmp_path / "c")
    cluster.deposits(0)
    cluster.spread(0)
    directories = cluster.finish()
    end = stream_of(*directories).latestOffset({}, ALL)
    for directory in directories:
        assert given(stream_of(directory), end, stream_of(directory).latestOffset(end, ALL)) == []


def test_older_copy_is_refused(tmp_path: Path) -> None:
    """A directory that was copied before the stream came so far does not hold what it gave out."""
    rig = made(tmp_path / "node", 4)
    shutil.copytree(rig.directory, tmp_path / "copy")
    before = stream_of(rig.directory).latestOffset({}, ALL)
    rig.restart()
    rig.deposits(4)
    rig.close()
    end = stream_of(rig.directory).latestOffset(before, ALL)
    with pytest.raises(OtherHistory, match="or is an older copy"):
        stream_of(str(tmp_path / "copy")).latestOffset(end, ALL)
    assert stream_of(str(tmp_path / "copy")).latestOffset(before, ALL) == before


def test_offset_within_a_batch_is_bound_to_it(tmp_path: Path) -> None:
    """Limits cut batches anywhere; a reader that begins with such an offset resumes there, one of another batch is refused."""
    rig = made(tmp_path / "node", 5)
    limits, offset = random.Random(6), dict[str, str]()
    while (end := stream_of(rig.directory).latestOffset(offset, ReadMaxRows(limits.randint(1, 2)))) != offset:
        assert given(stream_of(rig.directory), offset, end)
        partition = max(end.keys() - {"cluster"}, key=lambda name: end[name])
        *rest, checksum = end[partition].split(":")
        with pytest.raises(OtherHistory, match=f"another history .*for partition {partition}"):
            stream_of(rig.directory).latestOffset({**end, partition: ":".join([*rest, str(int(checksum) ^ 1)])}, ALL)
        offset = end
    assert max(len(text) for text in offset.values()) <= 90


def test_entry_that_the_ring_let_go_of_is_known_by_the_head_of_the_log(tmp_path: Path) -> None:
    """Where a log begins right behind what was given out its first head is asked, and a wrong checksum is refused there too."""
    stream, offset = stream_of_idle_partition(tmp_path)
    assert stream.latestOffset(offset, ALL) == offset
    *rest, checksum = offset["1"].split(":")
    forged = {**offset, "1": ":".join([*rest, str(int(checksum) ^ 1)])}
    with pytest.raises(OtherHistory, match=r"for partition 1 .* and the log holds term 1, checksum"):
        stream.latestOffset(forged, ALL)
