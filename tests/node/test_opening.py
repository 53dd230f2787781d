"""`cmdlog.open` on directories and machines that do not allow it: every error is a documented one and names what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.directory.instance import LOCK_NAME
from cmdlog.wal.files import RealFiles
from cmdlog.wal.opening.home import adopt

pytestmark = pytest.mark.slow
Attempt = Callable[..., dict[str, Any]]
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")


@pytest.fixture(scope="module")
def attempt() -> Iterator[Attempt]:
    """Opens a directory in a fork of a process that has loaded everything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.node.opener"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(directory: str | Path, **case: Any) -> dict[str, Any]:
        stdin.write(json.dumps({"directory": str(directory), **case}) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    yield ask
    stdin.close()
    process.wait()
    stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, too."""
    path = Path(tempfile.mkdtemp(prefix="cmdlog-opening-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def node(attempt: Attempt, folder: Path) -> Path:
    """A directory that was used and closed."""
    assert attempt(folder / "node", calls=20)["ended"] == "opened"
    return folder / "node"


def lose_states(node: Path) -> None:
    """What a loss of power may do: the states have to be rebuilt."""
    for state in (node / "state").iterdir():
        state.unlink()


def check(answer: dict[str, Any], *, path: Path | None = None, kinds: tuple[str, ...] = ()) -> None:
    """It is a documented error that names the file and, in brackets, what to do."""
    assert answer["ended"] == "documented", answer.get("trace", answer)
    assert path is None or str(path) in answer["message"], answer
    assert answer["message"].endswith(")"), answer
    assert not kinds or answer["kind"] in kinds, answer


def as_file(path: Path) -> None:
    """Makes an empty file."""
    path.write_bytes(b"")


def as_folder(path: Path) -> None:
    """Makes a folder with something in it, in the place of what is there."""
    if path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    (path / "something").touch()


def test_path_that_is_no_folder(attempt: Attempt, folder: Path) -> None:
    """A file, and a path below a file."""
    as_file(folder / "file")
    check(attempt(folder / "file"), path=folder / "file", kinds=("WrongDirectory",))
    check(attempt(folder / "file" / "below"), path=folder / "file", kinds=("WrongDirectory",))


@pytest.mark.parametrize(
    "name", ["instance.json", "state/p0000.sqlite", "state/p0000.sqlite.lock", "state/p0000.sqlite-wal", "state/trust.json"]
)
def test_folder_in_the_place_of_a_file(attempt: Attempt, node: Path, name: str) -> None:
    """Whatever file of the directory turns out to be a folder is named, or done without."""
    as_folder(node / name)
    answer = attempt(node)
    if answer["ended"] != "opened":
        check(answer, path=node / name)


@pytest.mark.parametrize("name", ["state", "log", "snapshots", "archive", "faults"])
def test_file_in_the_place_of_a_folder(attempt: Attempt, node: Path, name: str) -> None:
    """The same the other way round."""
    if (node / name).exists():
        shutil.rmtree(node / name)
    as_file(node / name)
    answer = attempt(node)
    if answer["ended"] != "opened":
        check(answer, path=node)


@needs_root
@pytest.mark.parametrize("name", [".", "instance.json", "state", "state/p0000.sqlite", "log", "snapshots", LOCK_NAME])
@pytest.mark.parametrize("mode", [0o000, 0o555], ids=["unreadable", "unwritable"])
def test_directory_without_rights(attempt: Attempt, node: Path, name: str, mode: int) -> None:
    """Another user may not read or write a part of the directory."""
    for path in [node, *node.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    os.chown(node / name, 0, 0)
    (node / name).chmod(mode)
    answer = attempt(node, user=NOBODY)
    if answer["ended"] != "opened":
        check(answer, path=node)


@needs_root
def test_new_directory_where_nothing_may_be_made(attempt: Attempt, folder: Path) -> None:
    """The parent belongs to another user."""
    check(attempt(folder / "new", user=NOBODY), path=folder / "new", kinds=("WrongDirectory",))


@needs_root
@pytest.mark.parametrize("lost", [False, True], ids=["states_kept", "states_lost"])
def test_read_only_volume(attempt: Attempt, node: Path, lost: bool) -> None:
    """A volume that turned read-only."""
    if lost:
        lose_states(node)
    subprocess.run(["mount", "--bind", node, node], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", node], check=True)
        check(attempt(node), path=node, kinds=("WriteFailed",))
    finally:
        subprocess.run(["umount", node], check=True)


@needs_root
def test_volume_that_fills_while_states_are_rebuilt(attempt: Attempt, node: Path, folder: Path) -> None:
    """However little room is left, the error says that the disk is full; with enough the same directory opens."""
    lose_states(node)
    for spare_kib in (0, 64, 512, 2048):
        volume = folder / "volume"
        volume.mkdir(exist_ok=True)
        taken_kib = sum(path.stat().st_blocks for path in node.rglob("*") if path.is_file()) // 2
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={taken_kib + 64 + spare_kib}k", "none", volume], check=True)
        try:
            shutil.copytree(node, volume / "node")
            adopt(RealFiles(), str(volume / "node"))
            answer = attempt(volume / "node")
            check(answer, path=volume / "node", kinds=("DiskFull",)) if answer["ended"] != "opened" else None
        finally:
            subprocess.run(["umount", volume], check=True)
    assert attempt(node)["ended"] == "opened"


@pytest.mark.parametrize("size", [0, 8192, 65_536, 1_000_000])
def test_file_size_limit(attempt: Attempt, node: Path, folder: Path, size: int) -> None:
    """A limit on files is a full disk, at creation and while states are rebuilt."""
    lose_states(node)
    for directory in (node, folder / "new"):
        answer = attempt(directory, limits={"RLIMIT_FSIZE": size})
        if answer["ended"] != "opened":
            check(answer, path=directory, kinds=("DiskFull", "FileTooLarge", "WriteFailed", "ShortWrite"))
            assert answer["kind"] not in ("FileTooLarge", "WriteFailed") or "RLIMIT_FSIZE" in answer["message"]


def test_too_few_open_files(attempt: Attempt, node: Path) -> None:
    """From none to enough: too few is named as that, never by what failed for want of them."""
    ended = []
    for number in (8, 12, 17, 24, 32, 44, 77):
        answer = attempt(node, limits={"RLIMIT_NOFILE": number})
        ended.append(answer["ended"])
        if answer["ended"] != "opened":
            check(answer, kinds=("LimitReached",))
            assert "RLIMIT_NOFILE" in answer["message"]
    assert ended[-1] == "opened"


def test_too_small_address_space(attempt: Attempt, node: Path) -> None:
    """Too little memory is named with what was given and what is needed."""
    ended = []
    for mib in (160, 400, 1960):
        answer = attempt(node, limits={"RLIMIT_AS": mib << 20})
        ended.append(answer["ended"])
        if answer["ended"] != "opened":
            check(answer, kinds=("LimitReached",))
            assert "RLIMIT_AS" in answer["message"]
    assert ended[-1] == "opened"
