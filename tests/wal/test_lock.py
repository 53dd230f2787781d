"""The folder of a node: made, or refused with the path and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.wal.directory.lock import make_folder, take_ownership
from cmdlog.wal.errors import NotEmpty, WrongDirectory
from cmdlog.wal.files import RealFiles


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
