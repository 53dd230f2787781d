"""A volume without space: exit code 14, the file that could not be written, what is free, and nothing half made is left."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.cli.cli_errors import explain
from cmdlog.cli.disk_errors import writing
from tests.commands import Command
from tests.replay.ledgers import LEDGER, SMALL, Versions, logged_calls
from tests.small_volume import small_volume

pytestmark = pytest.mark.slow
ACCOUNTS = 500
BULKY = "import random\n" + LEDGER.replace("balance=0)\n", 'balance=0, note=bindparam("note_"))\n').replace(
    "id_=account)\n    return account", "id_=account, note_=random.Random(account).randbytes(1500).hex())\n    return account"
)


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with a megabyte of rows that cannot be packed, and snapshots."""
    folder = tmp_path_factory.mktemp("ledger") / "node"
    with cmdlog.open(folder, versions.load("ledger_v1", BULKY), partitions=2, **SMALL) as opened:
        for answer in [opened.submit("begin", account=account) for account in range(ACCOUNTS)]:
            answer.result()
        for partition in range(2):
            opened.node.take_snapshot(partition)
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A volume of 400 kB."""
    with small_volume(tmp_path / "small", 400 << 10) as folder:
        yield folder


def test_new_node_names_the_file_that_has_no_place(node: Path, small: Path, command: Command) -> None:
    """Of a recovery from snapshots, here and in processes, and of a fork: a file of OUT, never one of DIR."""
    fork = ("fork", node, "--at", "start", "--app", "ledger_v1:db", "--to", small / "out")
    recover = ("recover", node, "--to", small / "out")
    for arguments in (recover, (*recover, "--call-timeout-s", 5), fork):
        code, failed = command(*arguments, "--json")
        check(code, failed, small / "out" / "state")
        assert str(node) not in failed["error"]["message"]
        assert [path.name for path in small.rglob("*")] in ([], ["out"])


def check(code: int, failed: Any, path: Path) -> None:
    """The error as it must be."""
    error = failed["error"]
    assert (code, error["exit_code"], error["kind"]) == (14, 14, "DiskFull"), failed
    assert str(path) in error["message"]
    assert "410 kB are free on that volume now" in error["message"]
    assert error["message"].count("free space") == 0
    assert "free space" in error["hint"]


def test_tables_and_differences_name_their_folder(node: Path, small: Path, command: Command, tmp_path: Path) -> None:
    """Parquet writers say no name of themselves."""
    code, failed = command("snapshot", "export", node, "--to", small / "tables", "--json")
    check(code, failed, small / "tables")
    fork = (
        "fork",
        node,
        "--at",
        "start",
        "--app",
        "ledger_v1:db",
        "--to",
        tmp_path / "out",
        "--until",
        logged_calls(node)[0].txn_id,
    )
    assert command(*fork)[0] == 0
    code, failed = command("diff", node, tmp_path / "out", "--parquet", small / "files", "--json")
    check(code, failed, small / "files")
    assert list(small.iterdir()) == []


def test_scratch_and_plan_are_named(
    node: Path, small: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A side that must be rebuilt for a comparison, in TMPDIR; a plan that finds no place leaves no half of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(node), str(copy)], check=True)
    code, failed = command("diff", copy, node, "--json")
    check(code, failed, small / "cmdlog-states-")
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space"):
        (small / "fill").write_bytes(bytes(1 << 20))
    code, text = command("recover", node, "--plan", "--plan-file", small / "plan.json")
    assert (code, str(small / "plan.json") in text, "0 bytes of 410 kB are free" in text) == (14, True, True)
    assert [path.name for path in small.iterdir()] == ["fill"]
    code, text = command("recover", node, "--plan", "--plan-file", "/dev/full")
    assert (code, "/dev/full" in text) == (14, True)
    assert Path("/dev/full").is_char_device()


def test_copy_is_told_by_its_target() -> None:
    """Python names the source first; it is fine."""
    full = OSError(28, "No space left on device", "/in/image", None, "/out/image")
    failure = explain(full)
    assert failure is not None
    assert failure.message == "/out/image: No space left on device"
    missing = explain(FileNotFoundError(2, "No such file or directory", "/in/image", None, "/out/image"))
    assert missing is not None
    assert missing.message.startswith("/in/image")
    with pytest.raises(ZeroDivisionError), writing("/out"):
        _ = 1 / 0
