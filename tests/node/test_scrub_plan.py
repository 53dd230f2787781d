"""The order of a scrub: a pass continues after the file that it has finished, and ends although new files come."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from cmdlog.node.scrub.scrub_plan import ScrubItem, ScrubPlan, items_left, last_names
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.segment import decode_segment_header
from cmdlog.wal.log import Log
from cmdlog.wal.opening.survey import SegmentFile
from tests.wal.damagekit import seg, several

SEGMENT = "log-6eaf29dc-n1-0000000000000001-0000000000000017"
SNAPSHOT = "p0000-0000000000000016"


def segments() -> list[SegmentFile]:
    """Three of a log."""
    files = several()
    return [SegmentFile(seg(n), decode_segment_header(files.read_file(seg(n))[:SECTOR_BYTES])) for n in (1, 2, 3)]


def plan_of(folder: Path, live: list[SegmentFile], *, durable_block: int) -> ScrubPlan:
    """Of a node whose log has these segments."""
    wal = SimpleNamespace(directory=str(folder), segments=live, durable_block=durable_block)
    return ScrubPlan(RealFiles(), cast(Log, wal))


def test_everything_is_listed_by_kind_and_name(tmp_path: Path) -> None:
    """Segments up to the block before their successor, the newest up to what is durable; other names are passed over."""
    for name in (f"archive/snap-6eaf29dc-n1-{SNAPSHOT}", f"snapshots/{SNAPSHOT}", "snapshots/tmp-p0000-0123456789abcdef"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "snapshots" / SNAPSHOT / "image.sqlite").write_bytes(b"123")
    for name in (f"{SEGMENT}.seg", f"{SEGMENT}.json", "promise.json"):
        (tmp_path / "archive" / name).write_bytes(b"12345")
    live = segments()
    items = plan_of(tmp_path, live, durable_block=40).list_items()
    assert [(item.kind, item.name, item.bytes) for item in items if item.kind != "log"] == [
        ("archive_log", f"{SEGMENT}.seg", 5),
        ("archive_snapshot", f"snap-6eaf29dc-n1-{SNAPSHOT}", 0),
        ("snapshot", SNAPSHOT, 3),
    ]
    of_log = [item for item in items if item.kind == "log"]
    assert [item.path for item in of_log] == [seg(1), seg(2), seg(3)]
    firsts = [int(segment.header.first_block) for segment in live]
    assert [item.last_block for item in of_log] == [firsts[1] - 1, firsts[2] - 1, 40]
    assert items == sorted(items, key=lambda item: item.key)


def test_a_segment_that_holds_nothing_durable_is_not_listed(tmp_path: Path) -> None:
    """It was just begun."""
    live = segments()
    items = plan_of(tmp_path, live, durable_block=int(live[-1].header.first_block) - 1).list_items()
    assert [item.path for item in items] == [seg(1), seg(2)]


def test_a_pass_ends_although_new_files_come() -> None:
    """What is new since the begin is the next pass's; what was finished is not read again, also if it is gone."""
    items = [ScrubItem("log", f"seg-{n}", "", 1) for n in range(5)] + [ScrubItem("snapshot", "p1", "", 1)]
    upto = last_names(items)
    assert upto == {"log": "seg-4", "snapshot": "p1"}
    later = [item for item in items if item.name != "seg-1"] + [
        ScrubItem("log", "seg-5", "", 1),
        ScrubItem("snapshot", "p2", "", 1),
        ScrubItem("archive_log", "log-1", "", 1),
    ]
    left = items_left(sorted(later, key=lambda item: item.key), after=("log", "seg-1"), upto=upto)
    assert [item.name for item in left] == ["seg-2", "seg-3", "seg-4", "p1"]


def test_an_archived_segment_is_stated_by_its_manifest(tmp_path: Path) -> None:
    """A file that is missing beside its manifest is damage; both gone is retention."""
    item = ScrubItem("archive_log", f"{SEGMENT}.seg", str(tmp_path / f"{SEGMENT}.seg"), 1)
    plan = plan_of(tmp_path, [], durable_block=0)
    assert not plan.is_still_there(item)
    (tmp_path / f"{SEGMENT}.json").write_bytes(b"")
    assert plan.is_still_there(item)
    os.rename(tmp_path / f"{SEGMENT}.json", tmp_path / f"{SEGMENT}.seg")
    assert plan.is_still_there(item)
