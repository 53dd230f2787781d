"""Which commands run the code that a directory's log holds: those whose help says so, and no other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import cmdlog
from cmdlog.cli.directory.owner import RUNS_CODE
from tests.commands import Command
from tests.node.deployed import SOURCE, forget_app, import_version

pytestmark = pytest.mark.slow
RUNNING = (
    "recover DIR --to OUT", "drill DIR", "fork DIR --at TXN --app other_app:db --to OUT", "diff DIR COPY",
    "snapshot export DIR --to OUT",
)  # fmt: skip
LOOKING = (
    "recover DIR --plan --to OUT", "diff DIR COPY --no-code", "diff SNAPSHOT SNAPSHOT", "log inspect DIR", "log dump DIR",
    "log history DIR", "log verify DIR", "snapshot list DIR", "snapshot verify DIR", "snapshot points DIR", "archive list DIR",
    "archive verify DIR",
)  # fmt: skip
PARTS = {"version": 1, "name": "tally", "columns": "", "more_tables": "", "first": ""}


class Place:
    """A node whose code leaves a mark wherever it is imported, and a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.node, self.copy = folder, folder / "node", folder / "copy"
        self.mark = folder / "mark"
        last = f"open({str(self.mark)!r}, 'w').close()"
        db, _ = import_version(folder, SOURCE.format(**PARTS, last=last))
        (folder / "other_app.py").write_text(SOURCE.format(**PARTS, last=""))
        with cmdlog.open(self.node, db, partitions=1, segments=4, segment_bytes=1 << 20) as opened:
            opened.call("hit", id=1)
            opened.node.take_snapshot()
            self.txn_id = opened.invoke("hit", {"id": 1}).txn_id
        shutil.copytree(self.node, self.copy)
        forget_app()

    def ran(self, command: Command, words: str) -> tuple[int, str, bool]:
        """Exit code, text, and whether the code in the log was imported."""
        self.mark.unlink(missing_ok=True)
        snapshot = next(self.node.glob("snapshots/p*"))
        names = {"DIR": self.node, "COPY": self.copy, "OUT": self.folder / "out", "SNAPSHOT": snapshot, "TXN": self.txn_id}
        code, text = command.text(*(names.get(word, word) for word in words.split()))
        return code, text, self.mark.exists()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A new one for each command, which may leave something in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Place(tmp_path)
    forget_app()


@pytest.mark.parametrize("words", RUNNING)
def test_a_command_that_runs_code_says_so(place: Place, words: str, command: Command) -> None:
    """In its help; and at the run, where the directory is another user's."""
    code, text, ran = place.ran(command, words)
    assert ran, (code, text)
    assert "belongs to" not in text
    names = [word for word in words.split()[:2] if word.islower()]
    assert " ".join(RUNS_CODE.split()) in " ".join(command.text(*names, "--help")[1].replace("│", " ").split())


@pytest.mark.parametrize("words", LOOKING)
def test_a_command_that_looks_runs_nothing(place: Place, words: str, command: Command) -> None:
    """Not even to learn what tables there are."""
    code, text, ran = place.ran(command, words)
    assert not ran, (code, text)
    assert code == (2 if "--no-code" in words else 0), text
    assert "--no-code" not in words or "have been replayed" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")
@pytest.mark.parametrize("words", ["diff DIR COPY", "recover DIR --to OUT", "snapshot export DIR --to OUT"])
def test_code_of_another_user_is_warned_about(place: Place, words: str, command: Command) -> None:
    """Root runs what the owner of the directory has written into it."""
    for path in (place.node, *place.node.rglob("*")):
        os.chown(path, 54321, 54321)
    assert "belongs to user 54321, and the code in its log runs as root" in " ".join(place.ran(command, words)[1].split())
    if words.startswith("diff"):
        assert "belongs to" not in place.ran(command, f"{words} --no-code")[1]
