"""Files of a copy: held whole whatever retention does, let go of without a trace, and lost when they are not what they were."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cmdlog.cluster.copying.held_files import CATCH_UP_S, FileLost, HeldFiles, HeldLog, OpenFile
from cmdlog.wal.files import RealFiles
from snapshot.catalog import FOLDER, remove
from snapshot.manifest import size_and_crc
from tests.cluster.copying.copykit import make_snapshot, some_bytes


def held_folders(directory: Path) -> list[str]:
    """Of copies."""
    return [name for name in os.listdir(directory / FOLDER) if name.startswith("tmp-")]


def read_all(held: HeldFiles) -> list[bytes]:
    """Every file as it is."""
    file = OpenFile()
    try:
        return [file.read(one, 0, one.about.size)[0] for one in held.files]
    finally:
        file.close()


def test_chain_is_held_newest_first(tmp_path: Path) -> None:
    """Manifest and data of each link, with size and checksum."""
    image = make_snapshot(tmp_path, 0, 10, b"image of 10")
    delta = make_snapshot(tmp_path, 0, 20, b"delta", base=image)
    held = HeldFiles(str(tmp_path))
    held.hold_snapshot(delta)
    names = [one.about.name for one in held.files]
    assert names == [
        f"{link.name}/{file}"
        for link, data in ((delta, "delta.sqlite"), (image, "image.sqlite"))
        for file in ("manifest.json", data)
    ]
    assert [(one.about.size, one.about.crc32c) for one in held.files] == [size_and_crc(one.path) for one in held.files]
    assert [one.about.file for one in held.files] == [0, 1, 2, 3]
    held.release()
    held.release()
    assert held_folders(tmp_path) == []


def test_removed_snapshot_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removes it at once, and cuts nothing off what is held; the last one who has it does that."""
    monkeypatch.setattr("snapshot.background_io.CUT_BYTES", 1000)
    monkeypatch.setattr("snapshot.background_io.CUT_PAUSE_S", 0.0)
    content = some_bytes(10_000)
    snapshot = make_snapshot(tmp_path, 0, 10, content)
    held = HeldFiles(str(tmp_path))
    held.hold_snapshot(snapshot)
    remove(RealFiles(), snapshot)
    assert not os.path.exists(snapshot.path)
    assert read_all(held)[1] == content
    held.release()
    assert os.listdir(tmp_path / FOLDER) == []


def test_volume_without_links_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive on another one, for example."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another volume")

    monkeypatch.setattr(os, "link", refuse)
    snapshot = make_snapshot(tmp_path, 0, 10, b"content")
    held = HeldFiles(str(tmp_path))
    held.hold_snapshot(snapshot)
    (Path(snapshot.path) / "image.sqlite").unlink()
    assert read_all(held)[1] == b"content"


@pytest.mark.parametrize("harm", ["gone", "short", "unusable"])
def test_snapshot_that_is_not_what_it_was_is_lost(tmp_path: Path, harm: str) -> None:
    """Before anything of it is promised."""
    snapshot = make_snapshot(tmp_path, 0, 10, b"content")
    if harm == "gone":
        remove(RealFiles(), snapshot)
    elif harm == "short":
        os.truncate(Path(snapshot.path) / "image.sqlite", 3)
    else:
        snapshot = make_snapshot(tmp_path, 0, 11, b"other")
        object.__setattr__(snapshot, "manifest", None)
    held = HeldFiles(str(tmp_path))
    with pytest.raises(FileLost):
        held.hold_snapshot(snapshot)
    held.release()
    assert held_folders(tmp_path) == []


def test_file_that_is_cut_or_gone_is_lost(tmp_path: Path) -> None:
    """Also where it was opened before: fewer bytes are never given as if they were all."""
    held = HeldFiles(str(tmp_path))
    held.hold_snapshot(make_snapshot(tmp_path, 0, 10, b"content"))
    manifest, image = held.files
    file = OpenFile()
    assert file.read(image, 2, 3)[0] == b"nte"
    os.truncate(image.path, 4)
    with pytest.raises(FileLost):
        file.read(image, 2, 3)
    os.unlink(manifest.path)
    with pytest.raises(FileLost):
        file.read(manifest, 0, 1)
    file.close()
    file.close()


class Anchors(dict[str, int]):
    """Of a log; removing one that is not there is an error here."""

    def hold(self) -> HeldLog:
        """What holds by them."""
        return HeldLog(self.__setitem__, self.__delitem__)


def test_each_partition_has_an_anchor() -> None:
    """Until the node is released, which may be said twice; others keep theirs."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.hold_partition(2, 1, 50)
    held.hold_partition(3, 0, 60)
    assert anchors == {"copy-2-0": 40, "copy-2-1": 50, "copy-3-0": 60}
    assert held.nodes == [2, 3]
    held.release_node(2)
    held.release_node(2)
    assert anchors == {"copy-3-0": 60}


def test_copy_under_way_is_never_done() -> None:
    """However long it takes."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.release_done(1e9, lambda _: False)
    assert anchors


def test_done_copy_is_held_while_its_recipient_waits() -> None:
    """And not beyond its time."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 100.0)
    held.keep_for_catch_up(9, 100.0)
    held.release_done(100.0 + CATCH_UP_S, lambda _: True)
    assert anchors
    held.release_done(100.1 + CATCH_UP_S, lambda _: True)
    assert not anchors
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 100.0)
    held.release_done(101.0, lambda _: False)
    assert (dict(anchors), held.nodes) == ({}, [])


def test_next_copy_is_under_way_again() -> None:
    """What was said of the last one is over."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 0.0)
    held.hold_partition(2, 0, 80)
    held.release_done(1e9, lambda _: False)
    assert anchors == {"copy-2-0": 80}
