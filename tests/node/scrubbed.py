"""A node whose log, snapshots and archive all hold something, and a scrub that is stepped by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cmdlog.node.node import Node
from cmdlog.node.scrub.scrub_plan import ScrubItem, ScrubPlan
from cmdlog.node.scrub.scrubber import FIRST_AFTER_S, Scrubber
from cmdlog.wal.files import RealFiles
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

SEGMENT_BYTES = 256 << 10
SHAPE: dict[str, Any] = {
    "partitions": 2, "segment_bytes": SEGMENT_BYTES, "segments": 24, "log_reserve_bytes": 128 << 10, "call_bytes_max": 30_000,
    "batch_bytes_max": 30_000, "snapshots_kept": 2, "retention_window_s": 3600.0, "scrub_every_s": 0.0,
}  # fmt: skip
RAW = "eHl6" * 5_000
FAR = 4e9  # seconds since 1970: whatever was due before is due then


def write_segments(node: Node, count: int, *, first: int) -> int:
    """Calls that fill so many segments of the log; the number after the last one's."""
    end = first + count * SEGMENT_BYTES // 20_000
    for seq in range(first, end):
        ask(node, "mixed", id=seq, amount="1.5", at="2026-01-01T00:00:00Z", raw=RAW)
        ask(node, "bump", id=seq % 50, amount=seq)
    return end


def a_full_node(directory: Path, **settings: Any) -> Node:
    """Its ring, `snapshots/` and `archive/` all hold files: segments, and snapshots of both partitions."""
    node = open_node(directory, inline=True, **{**SHAPE, **settings})
    seq = 0
    for _ in range(5):
        seq = write_segments(node, 2, first=seq)
        node.take_snapshot()
    wait_for(lambda: node.status()["archive"]["segments"] >= 2)
    write_segments(node, 3, first=seq)
    pool = node.overview.ground.wal._space
    wait_for(lambda: pool._passed() is None)  # else the next start archives the segment while a test looks at it
    return node


def items_of(node: Node) -> dict[str, list[ScrubItem]]:
    """What there is to be read, by kind."""
    found: dict[str, list[ScrubItem]] = {}
    for item in ScrubPlan(RealFiles(), node.overview.ground.wal).list_items():
        found.setdefault(item.kind, []).append(item)
    return found


def scrub_of(node: Node) -> Scrubber:
    """The scrub of the node; its thread does not run."""
    return node.overview.checks.scrub


def run_pass(scrub: Scrubber, now: float = FAR) -> dict[str, Any]:
    """Steps until one more pass is over; the status then."""
    passes = scrub.status()["passes"]
    for _ in range(100_000):
        now += scrub.step(now)
        if scrub.status()["passes"] > passes:
            return scrub.status()
    raise AssertionError(scrub.status())


def run_repairs(scrub: Scrubber, now: float = FAR) -> dict[str, Any]:
    """Steps until no snapshot that a repair has asked for is under way; the status then."""
    wait_for(lambda: scrub.step(now) is not None and not scrub._repair.takes_snapshots, why=lambda: str(scrub.status()))
    return scrub.status()


def flip_bit(path: Path | str, *, seed: int, begin: int = 0, end: int | None = None) -> int:
    """Flips one bit at a seeded place in [begin, end); its offset."""
    data = bytearray(Path(path).read_bytes())
    offset = random.Random(seed).randrange(begin, len(data) if end is None else end)
    data[offset] ^= 1 << seed % 8
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data[offset : offset + 1])
    return offset


def found_paths(findings: Iterable[dict[str, Any]]) -> list[str]:
    """Which files are damaged."""
    return sorted(found["path"] for found in findings)


__all__ = ["FAR", "FIRST_AFTER_S", "a_full_node", "flip_bit", "found_paths", "items_of", "run_pass", "run_repairs", "scrub_of"]
