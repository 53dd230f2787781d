"""The capture that a site is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.snapshots.snapshot_maker import SiteCapture
from snapshot.capture.capture import Wish
from snapshot.errors import SnapshotFailed

WISH = Wish("delta", base=None, keys_max=0, keep=())
REPORT = {"partition": 3, "index": 9, "term": 1, "checksum": 5, "txn_id": 70, "more": "than is asked for"}


def capture_of(folder: Path, answer: Callable[[SiteCapture, int], None], blocks: list[int]) -> SiteCapture:
    """A site that answers at once; `blocks` are what the log says one after another."""
    made: list[SiteCapture] = []
    capture = SiteCapture(
        lambda partition, ident, path, wish: answer(made[0], ident),
        lambda partition: blocks.pop(0),
        lambda partition: 0,
        RecoverySpeeds(str(folder), ["p"], 4),
    )
    made.append(capture)
    return capture


def run(capture: SiteCapture) -> dict[str, Any]:
    """A snapshot of partition 3."""
    return capture.run(3, "image", WISH, lambda partition: None)


@pytest.mark.parametrize(("kind", "log_block"), [("full", 12), ("delta", 10)])
def test_log_is_kept_from_the_moment_whose_state_the_image_holds(tmp_path: Path, kind: str, log_block: int) -> None:
    """A whole image holds the state of its end, a delta that of its beginning: entries in between lie in earlier blocks."""
    capture = capture_of(tmp_path, lambda own, ident: own.complete(ident, {**REPORT, "kind": kind}), [10, 12])
    facts = run(capture)
    assert facts["log_block"] == log_block
    assert "more" not in facts


def test_answer_to_an_earlier_capture_is_not_taken(tmp_path: Path) -> None:
    """A capture that was given up may still be answered: the next one waits for its own."""

    def answer(own: SiteCapture, ident: int) -> None:
        own.complete(ident - 1, {**REPORT, "kind": "full", "index": 1})
        own.complete(ident, {**REPORT, "kind": "full"})

    assert run(capture_of(tmp_path, answer, [10, 11, 12]))["index"] == 9


def test_capture_ends_with_its_site(tmp_path: Path) -> None:
    """Other sites may end; when its own does, the capture fails at once."""

    def answer(own: SiteCapture, ident: int) -> None:
        own.lose([0, 1])
        own.lose([2, 3])

    with pytest.raises(SnapshotFailed, match="partition 3 could not be written: the site ended during the capture"):
        run(capture_of(tmp_path, answer, [10]))


def test_stopping_node_waits_for_no_site(tmp_path: Path) -> None:
    """A site that is busy may answer late, or never."""
    with pytest.raises(SnapshotFailed, match="stopping"):
        run(capture_of(tmp_path, lambda own, ident: own.stop(), [10]))
