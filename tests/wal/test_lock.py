"""The folder of a node: made, or refused with the path and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.directory.lock import OwnerRecord, make_folder, take_ownership
from cmdlog.wal.errors import Locked, NotEmpty, WrongDirectory
from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from cmdlog.wal.opening.home import adopt
from cmdlog.wal.os_errors import locked
from tests.wal.sim.simfiles import SimFiles


def test_a_folder_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """A link that leads nowhere, a missing folder above it, a file system that makes none: never a bare error of the system."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, why in (
        (tmp_path / "link", "a dangling symbolic link"),
        (tmp_path / "no" / "folder", f"there is no folder {tmp_path / 'no'}"),
        (Path("/proc/nope"), "No such file or directory"),
    ):
        with pytest.raises(WrongDirectory, match=f"{path} cannot be created: .*{why}\n.*volume is mounted"):
            make_folder(RealFiles(), str(path))
    make_folder(RealFiles(), str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    """The hint is to name another one."""
    (tmp_path / "letter.txt").touch()
    with pytest.raises(NotEmpty, match=r"letter\.txt\n.*choose an empty or new folder"):
        take_ownership(RealFiles(), str(tmp_path))


def test_directory_without_a_node_is_left_as_it_is(tmp_path: Path) -> None:
    """No file of a lock appears in it, and the hint names the nodes that lie in it."""
    for opened in (Log.open, adopt):
        with pytest.raises(WrongDirectory, match="is not a node directory") as refused:
            opened(RealFiles(), str(tmp_path))
        assert refused.value.hint == "give the directory of `cmdlog serve --data DIR`; nothing was written"
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "instance.json").touch()
    with pytest.raises(WrongDirectory, match=f"hint: there is a node in {tmp_path / 'node'}; nothing was written"):
        Log.open(RealFiles(), str(tmp_path))
    with pytest.raises(WrongDirectory, match=r"instance\.json is a file"):
        Log.open(RealFiles(), str(tmp_path / "node" / "instance.json"))


def test_a_node_on_a_full_disk_is_locked_though_its_record_finds_no_room() -> None:
    """A power cut may take the record of the last owner, and with it the room; the lock needs none."""
    files = SimFiles()
    files.mkdir("/node")
    files.write_file_atomic("/node/instance.json", b"{}")
    files.capacity_bytes = files.disk.used_bytes()
    held = take_ownership(files, "/node")
    with pytest.raises(Locked, match="left no owner record yet"):
        take_ownership(files, "/node")
    held.close()


def test_error_of_a_locked_directory_names_the_process_in_words() -> None:
    """Not as the bytes of the record; one that is not written yet is admitted."""
    record = OwnerRecord(pid=7, host="here", boot_id="b", started="2026-01-31T12:00:00Z")
    named = locked("/data/LOCK", record.encode())
    assert str(named) == "/data/LOCK is locked by process 7 on here, which started at 2026-01-31T12:00:00Z"
    for unread in (b"", b"{", b"[]", b"{}"):
        assert str(locked("/data/LOCK", unread)) == "/data/LOCK is locked by a process that left no owner record yet"
