"""What commands write is for owner and group, whatever umask they have, and lies where the path says: links are refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.cli.disk_errors import write_output
from cmdlog.file_lock import open_locked
from cmdlog.node.scrub.scrub_progress import ScrubProgress
from cmdlog.wal.directory.lock import refuse_link
from cmdlog.wal.errors import WalError, WrongDirectory
from cmdlog.wal.files import RealFiles
from replay.state.trust import Trust
from snapshot.restore_speed import write_speeds
from tests.api import every_type
from tests.api.running import Running
from tests.commands import Command
from tests.node.rig import ask, open_node

APP = "tests.api.every_type:db"


def open_to_others(folder: Path) -> list[str]:
    """Files and folders with more rights than 0640 and 0750."""
    found = []
    for path in (folder, *sorted(folder.rglob("*"))):
        mode, allowed = stat.S_IMODE(path.stat().st_mode), 0o750 if path.is_dir() else 0o640
        if mode & ~allowed:
            found.append(f"{path.name} {mode:o}")
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node with calls and a snapshot."""
    folder = tmp_path_factory.mktemp("modes") / "data"
    opened = open_node(folder, app=every_type.db, inline=True, partitions=2, segments=4, segment_bytes=4 << 20)
    for item in range(4):
        ask(opened, "put", item=item, name="x")
    opened.take_snapshot()
    opened.close()
    return folder


def run(folder: Path, *arguments: str | Path) -> None:
    """A command with a umask that takes nothing away."""
    command = [sys.executable, "-m", "cmdlog", *map(str, arguments)]
    ended = subprocess.run(command, cwd=folder, umask=0, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr + ended.stdout


@pytest.mark.slow
def test_every_output_has_one_mode(node: Path, tmp_path: Path) -> None:
    """Nodes, Parquet, plans, modules: files 0640, folders 0750."""
    out = tmp_path / "out"
    out.mkdir(mode=0o750)
    run(out, "recover", node, "--to", "new")
    run(out, "recover", node, "--to", "planned", "--plan", "--plan-file", "plan.json")
    run(out, "fork", node, "--at", "start", "--app", APP, "--to", "fork")
    run(out, "diff", node, "new", "--parquet", "diff")
    run(out, "snapshot", "export", node, "--to", "export")
    run(out, "stubs", APP, "--out", "stubs.py")
    assert {path.name for path in out.iterdir()} >= {"new", "plan.json", "fork", "diff", "export", "stubs.py"}
    assert open_to_others(out) == []


@pytest.mark.slow
def test_the_directory_of_a_server_has_the_same(tmp_path: Path) -> None:
    """Also its states, which SQLite makes."""
    before = os.umask(0)
    try:
        running = Running(tmp_path)
    finally:
        os.umask(before)
    running.call("put", item=1, name="x")
    running.stop()
    assert open_to_others(tmp_path / "data") == []


@pytest.mark.parametrize("leads_to", ["nothing", "empty"])
@pytest.mark.parametrize("slash", ["", "/", "/."])
def test_a_link_is_no_place_for_an_output(tmp_path: Path, leads_to: str, slash: str) -> None:
    """Who put it there would choose where the rows go."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / leads_to)
    with pytest.raises(WrongDirectory, match="symbolic link"):
        refuse_link(f"{tmp_path / 'out'}{slash}")
    refuse_link(str(tmp_path / "out" / "below"))
    refuse_link(str(tmp_path / "empty"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["recover", "NODE", "--to", "out"],
        ["fork", "NODE", "--at", "start", "--app", APP, "--to", "out"],
        ["diff", "NODE", "NODE", "--parquet", "out"],
        ["snapshot", "export", "NODE", "--to", "out"],
    ],
    ids=lambda command: command[0],
)
def test_commands_refuse_a_link(node: Path, tmp_path: Path, command: list[str]) -> None:
    """An empty folder behind it stays empty."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "empty")
    words = [str(node) if word == "NODE" else word for word in command]
    if command[0] == "diff":
        (tmp_path / "other").mkdir()
    ended = subprocess.run([sys.executable, "-m", "cmdlog", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode in (1, 2)
    assert "out is a symbolic link" in ended.stderr
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_file_that_an_option_names_is_no_link(tmp_path: Path) -> None:
    """What a link leads to is neither made nor replaced; other files are, whole, and pipes take what is written."""
    (tmp_path / "victim").write_text("kept")
    for name, target in (("out", "victim"), ("dangling", "none")):
        (tmp_path / name).symlink_to(tmp_path / target)
        with pytest.raises(WrongDirectory, match="symbolic link"):
            write_output(tmp_path / name, b"new")
    assert (tmp_path / "victim").read_text() == "kept"
    assert not (tmp_path / "none").exists()
    for content in (b"new", b"newer"):
        write_output(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    (tmp_path / "null").symlink_to("/dev/null")
    write_output(tmp_path / "null", b"new")


@pytest.mark.slow
def test_commands_follow_no_link_of_an_output_file(node: Path, tmp_path: Path, command: Command) -> None:
    """Modules and plans."""
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    for words in (["stubs", APP, "--out"], ["recover", node, "--to", tmp_path / "new", "--plan", "--plan-file"]):
        code, printed = command.text(*words, tmp_path / "out")
        assert code
        assert "out is a symbolic link" in printed
    assert (tmp_path / "victim").read_text() == "kept"


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    """The file that it leads to is neither made nor written to."""
    (tmp_path / "victim").write_text("kept")
    for name, target in (("LOCK", tmp_path / "victim"), ("other", tmp_path / "none")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            RealFiles().lock(str(tmp_path / name))
        with pytest.raises(OSError, match="symbolic links"):
            RealFiles().open(str(tmp_path / name), create=True)
        with pytest.raises(OSError, match="symbolic links"):
            open_locked(str(tmp_path / name))
    assert (tmp_path / "victim").read_text() == "kept"
    assert not (tmp_path / "none").exists()


def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    """A reader of a foreign directory would wait for who writes into it."""
    os.mkfifo(tmp_path / "instance.json")
    with pytest.raises((OSError, WalError)):
        RealFiles().read_file(str(tmp_path / "instance.json"))


def test_files_beside_the_states_follow_no_link(tmp_path: Path) -> None:
    """A link in the place of their temporary files is removed, and what it leads to is kept."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "victim").write_text("kept")
    for name in ("trust.json.tmp", "scrub.json.tmp", f"speeds.json.{os.getpid()}.tmp"):
        (state / name).symlink_to(tmp_path / "victim")
    (state / "p0000.sqlite").touch()
    Trust(RealFiles(), str(tmp_path)).grant(0)
    write_speeds(str(state), {})
    ScrubProgress().save(str(state), [])
    assert {path.name for path in state.iterdir()} == {"p0000.sqlite", "trust.json", "scrub.json", "speeds.json"}
    assert not any(path.is_symlink() for path in state.iterdir())
    assert (tmp_path / "victim").read_text() == "kept"
