"""Sizes of the log: whatever is let in gets out of a full log, and what cannot is refused with the least that can."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.node.background.snapshot_schedule import segments_wanted
from cmdlog.node.node import Node
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.node.settings import BadSetting, Settings
from cmdlog.wal.directory.instance import BadSettings
from cmdlog.wal.directory.sizing import RingSize
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.segment import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from tests.node.apps.faulty import db
from tests.node.fulllogs import restart
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

TINY: dict[str, Any] = {"segment_bytes": 32 << 10, "segments": 4, "log_reserve_bytes": 16 << 10, "call_bytes_max": 2000}


def goes_round(node: Node, rounds: int) -> None:
    """Calls until the ring has been written so many times since its making, each taken at last."""
    numbers = itertools.count(1_000_000 * rounds)

    def taken() -> bool:
        seq = next(numbers)
        try:
            return bool(ask(node, "store", id=seq, seq=seq, data=bytes(1000)))
        except LogFullRefusal:
            return False

    while node._wal.segments[-1].sequence <= rounds * node.settings.segments:
        wait_for(taken)


@pytest.mark.parametrize(
    ("partitions", "sizes"),
    [
        pytest.param(1, {}, marks=pytest.mark.slow),
        pytest.param(2, {}, marks=pytest.mark.torture),
        pytest.param(2, {"log_reserve_bytes": 4096}, marks=pytest.mark.slow),
        pytest.param(3, {"segment_bytes": 64 << 10, "segments": 4, "log_reserve_bytes": 32 << 10}, marks=pytest.mark.torture),
        pytest.param(16, {"segment_bytes": 64 << 10, "segments": 5, "log_reserve_bytes": 4096}, marks=pytest.mark.torture),
    ],
)
def test_the_smallest_rings_go_round(tmp_path: Path, partitions: int, sizes: dict[str, Any]) -> None:
    """Calls, requested snapshots and a restart, with the log full again and again: none hangs, none is lost."""
    node = open_node(tmp_path / "data", inline=True, partitions=partitions, **{**TINY, **sizes})
    goes_round(node, 1)
    assert len(node.take_snapshot()) == partitions
    node.close()
    node = restart(tmp_path / "data")
    goes_round(node, 2)
    assert node.error is None
    node.close()


@pytest.mark.torture
def test_a_directory_of_sizes_that_are_refused_now_still_gets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version let more in: more partitions than a segment is meant for."""
    with monkeypatch.context() as patched:
        patched.setattr(RingSize, "check", lambda self: None)
        node = open_node(tmp_path / "data", inline=True, partitions=16, **{**TINY, "log_reserve_bytes": 16 << 10})
    node.close()
    node = restart(tmp_path / "data")
    goes_round(node, 1)
    node.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partitions", "segment_bytes", "says"),
    [(16, 32 << 10, "head of a segment"), (100, 32 << 10, "for 100 partitions")],
)
def test_a_ring_that_cannot_work_is_refused_with_the_least_that_does(
    tmp_path: Path, partitions: int, segment_bytes: int, says: str
) -> None:
    """One message names the size; with it the node is made, and nothing was left by the refusal."""
    sizes = {**TINY, "segment_bytes": segment_bytes, "partitions": partitions}
    with pytest.raises(BadSettings, match=says) as refused:
        open_node(tmp_path / "data", inline=True, **sizes)
    assert not (tmp_path / "data").exists()
    least = int(re.findall(r"(\d+) at least", str(refused.value))[0])
    assert least > segment_bytes
    open_node(tmp_path / "data", inline=True, **{**sizes, "segment_bytes": least}).close()


@pytest.mark.slow
def test_a_ring_in_which_writes_often_wait_is_warned_of_with_one_that_does_not(tmp_path: Path) -> None:
    """When it is made and at every start; a node with the number of segments that is named is not warned of."""
    sizes: dict[str, Any] = {"partitions": 8, "segment_bytes": 48 << 10, "segments": 6, "log_reserve_bytes": 4096}
    remedies = []
    for attempt in range(2):
        with capture_logs() as lines:
            node = open_node(tmp_path / "small", inline=True, **({**sizes, "call_bytes_max": 2000} if not attempt else {}))
            node.close()
        (warning,) = [line for line in lines if line["event"] == "small_log"]
        assert (warning["partitions"], warning["segments"], warning["log_level"]) == (8, 6, "warning")
        remedies.append(warning["remedy"])
    wanted = int(re.findall(r"--segments (\d+)", remedies[1])[0])
    assert wanted == 12
    with capture_logs() as lines:
        open_node(tmp_path / "large", inline=True, **{**sizes, "segments": wanted, "call_bytes_max": 2000}).close()
    assert not [line for line in lines if line["event"] == "small_log"]


@pytest.mark.parametrize(("partitions", "segments", "segment_bytes"), [(16, 64, 16 << 20), (256, 64, 16 << 20), (2, 8, 64 << 10)])
def test_usual_rings_are_not_warned_of(partitions: int, segments: int, segment_bytes: int) -> None:
    """The default ring is enough for every number of partitions, as far as its snapshots go."""
    assert segments_wanted(partitions, segments, segment_bytes, 0.5) == segments


def test_the_least_size_is_the_least() -> None:
    """One sector less is refused, for every shape of ring."""
    for partitions, segments, reserve_bytes, code_bytes in itertools.product(
        (1, 7, 200), (4, 64), (4096, 1 << 20), (2000, 60_000)
    ):
        ring = RingSize(partitions, segments, SEGMENT_BYTES_MIN, reserve_bytes, code_bytes, 2 * code_bytes)
        least = ring._least_bytes()
        assert SEGMENT_BYTES_MIN <= least < SEGMENT_BYTES_MAX
        assert not RingSize(partitions, segments, least, reserve_bytes, code_bytes, 2 * code_bytes).problem()
        if least > SEGMENT_BYTES_MIN:
            assert RingSize(partitions, segments, least - SECTOR_BYTES, reserve_bytes, code_bytes, 2 * code_bytes).problem()


@pytest.mark.slow
def test_another_number_of_partitions_is_refused_before_the_directory_counts_as_opened(tmp_path: Path) -> None:
    """A server tells its address only after that."""
    open_node(tmp_path / "data", inline=True, partitions=2).close()
    steps: list[Any] = []
    with pytest.raises(BadSetting, match="created with 2"):
        Node.open(str(tmp_path / "data"), db, Settings(partitions=3), inline=True, progress=steps.append)
    assert steps == []
