"""The trust record: what a sealed state file held is what a later start may use, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import orjson
import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.system.machine import birth_ns
from procedures.storage.state import PartitionState
from replay.state import trust as trust_module
from replay.state.trust import STATE_FOLDER, TRUST_NAME, Trust, state_path
from snapshot import manifest

FILES = RealFiles()


@pytest.fixture
def node(tmp_path: Path) -> str:
    """A folder with the trusted state files of two partitions."""
    (tmp_path / STATE_FOLDER).mkdir()
    trust = Trust(FILES, str(tmp_path))
    for partition in (0, 1):
        PartitionState.open(state_path(str(tmp_path), partition), partition=partition).close()
        trust.grant(partition)
    return str(tmp_path)


def doubts(node: str) -> list[str]:
    """Of both partitions, as a new process has them."""
    return [Trust(FILES, node).doubt(partition) for partition in (0, 1)]


def flip(path: str, at: int = -1) -> None:
    """One bit, with size and birth as they were."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def test_copied_file_is_not_trusted(node: str) -> None:
    """However good it looks, a file that is not the one that was written is rebuilt."""
    kept = Path(state_path(node, 0)).rename(f"{node}/kept")  # so that the copy gets another inode
    shutil.copy2(kept, state_path(node, 0))
    assert doubts(node) == ["the state file is a copy, or on another mount", ""]


def test_copied_file_is_not_trusted_at_the_very_inode(node: str) -> None:
    """The inode of a file that was removed may be the next one's: then it was made at another time."""
    path = Path(state_path(node, 0))
    if not birth_ns(str(path)):
        pytest.skip("this file system does not keep when a file was made")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    record = Path(node, STATE_FOLDER, TRUST_NAME)
    stated = orjson.loads(record.read_bytes())
    stated["files"][path.name][1] = path.stat().st_ino  # should another file have taken the number
    record.write_bytes(orjson.dumps(stated))
    assert doubts(node) == ["the state file is a copy, or on another mount", ""]


@pytest.mark.parametrize("boot", ["another", ""], ids=["another", "unknown"])
def test_file_of_an_earlier_boot_is_not_trusted(node: str, monkeypatch: pytest.MonkeyPatch, boot: str) -> None:
    """After a restart of the machine the page cache is gone, and so is what was never synced."""
    monkeypatch.setattr(RealFiles, "boot_id", lambda _files: boot)
    assert doubts(node) == ["the state file was not written since this machine was started"] * 2


@pytest.mark.parametrize("at", [0, 5000, -1], ids=["first", "middle", "last"])
def test_sealed_file_with_a_flipped_bit_is_not_trusted(node: str, at: int) -> None:
    """The other partition's still is; chunks do not matter."""
    Trust(FILES, node).seal((0, 1))
    assert doubts(node) == ["", ""]
    flip(state_path(node, 1), at)
    whole, changed = doubts(node)
    assert whole == ""
    assert changed.startswith("the state file does not hold what the stop wrote: CRC-32C ")


def test_content_is_that_of_the_whole_file_whatever_the_chunks_are(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in pieces that do not divide it."""
    path = state_path(node, 0)
    whole = manifest.content_of(path)
    assert whole[0] == os.path.getsize(path)
    monkeypatch.setattr(manifest, "CHUNK_BYTES", 1000)
    assert manifest.content_of(path) == whole


def test_sealed_file_is_read_once_by_whoever_asks_often(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay asks for each call that diverges; a file of gigabytes is not read for each of them."""
    Trust(FILES, node).seal((0, 1))
    trust, content_of = Trust(FILES, node), manifest.content_of
    read: list[str] = []

    def counted(path: str) -> trust_module.Content:
        read.append(path)
        return content_of(path)

    monkeypatch.setattr(trust_module, "content_of", counted)
    assert [trust.doubt(0) for _ in range(3)] == [""] * 3
    assert read == [state_path(node, 0)]


def test_file_of_another_size_is_told_without_reading_it(node: str) -> None:
    """And so is one that got a write-ahead log."""
    Trust(FILES, node).seal((0, 1))
    with open(state_path(node, 0), "ab") as file:
        file.write(b"\0")
    Path(f"{state_path(node, 1)}-wal").write_bytes(b"frames")
    longer, written = doubts(node)
    assert longer.endswith(f"{os.path.getsize(state_path(node, 0))} bytes instead of {os.path.getsize(state_path(node, 0)) - 1}")
    assert written.endswith("it has been written to since")


def test_unsealed_files_are_trusted_as_after_a_kill(node: str) -> None:
    """From the moment in which somebody may write, nothing is known of what they hold."""
    trust = Trust(FILES, node)
    trust.seal((0, 1))
    trust.unseal()
    flip(state_path(node, 0))
    assert doubts(node) == ["", ""]


def test_grant_and_revoke_break_the_seal_of_their_file_alone(node: str) -> None:
    """A file that was made anew is another one."""
    trust = Trust(FILES, node)
    trust.seal((0, 1))
    trust.grant(0)
    assert list(orjson.loads(Path(node, STATE_FOLDER, TRUST_NAME).read_bytes())["seals"]) == ["p0001.sqlite"]
    trust.revoke(1)
    assert orjson.loads(Path(node, STATE_FOLDER, TRUST_NAME).read_bytes())["seals"] == {}


def test_what_lies_in_the_write_ahead_log_is_brought_in_before_the_file_is_sealed(node: str) -> None:
    """A site that was killed leaves one: nobody writes to the state any more, so it can be sealed all the same."""
    path = state_path(node, 0)
    reader = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("SELECT * FROM _cmdlog_meta").fetchall()  # keeps the writer's close from doing it
    state = PartitionState.open(path, partition=0)
    state.connection.execute("UPDATE _cmdlog_meta SET clock = 7")
    state.close()
    assert os.path.getsize(f"{path}-wal")
    Trust(FILES, node).seal((0,))
    reader.close()
    assert doubts(node) == ["", ""]
    flip(path)
    assert doubts(node)[0] != ""


def test_file_that_somebody_still_reads_in_its_log_is_not_sealed(node: str) -> None:
    """What it will hold is not known yet; it is trusted as before."""
    path = state_path(node, 0)
    reader = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    state = PartitionState.open(path, partition=0)
    state.connection.execute("UPDATE _cmdlog_meta SET clock = 7")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM _cmdlog_meta").fetchall()
    state.connection.execute("UPDATE _cmdlog_meta SET clock = 8")
    state.close()
    Trust(FILES, node).seal((0, 1))
    assert list(orjson.loads(Path(node, STATE_FOLDER, TRUST_NAME).read_bytes())["seals"]) == ["p0001.sqlite"]
    reader.close()
    assert doubts(node) == ["", ""]


def test_hurried_stop_seals_nothing_more(node: str) -> None:
    """The first file was read to its end, the second one is left as it was."""
    answers = iter([False, *[True] * 100])
    size = os.path.getsize(state_path(node, 0))
    assert size < manifest.CHUNK_BYTES
    Trust(FILES, node).seal((0, 1), lambda: next(answers))
    assert list(orjson.loads(Path(node, STATE_FOLDER, TRUST_NAME).read_bytes())["seals"]) == ["p0000.sqlite"]


def test_opening_a_sealed_file_and_closing_it_changes_nothing(node: str) -> None:
    """A look at a stopped node's states costs no rebuild."""
    Trust(FILES, node).seal((0, 1))
    for partition in (0, 1):
        PartitionState.open(state_path(node, partition), partition=partition).close()
    assert doubts(node) == ["", ""]


@pytest.mark.parametrize("seals", [7, {"p0000.sqlite": 5}, {"p0000.sqlite": [1]}, {"p0000.sqlite": ["x", 1]}])
def test_record_with_nonsense_in_it_trusts_nothing(node: str, seals: object) -> None:
    """No error either: the states are rebuilt."""
    path = Path(node, STATE_FOLDER, TRUST_NAME)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "seals": seals}))
    assert all(doubts(node))


def test_record_of_an_earlier_version_trusts_as_it_did(node: str) -> None:
    """It has no seals."""
    path = Path(node, STATE_FOLDER, TRUST_NAME)
    value = orjson.loads(path.read_bytes())
    del value["seals"]
    path.write_bytes(orjson.dumps(value))
    assert doubts(node) == ["", ""]


def test_file_that_cannot_be_read_is_rebuilt(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad sector is no reason not to start."""
    Trust(FILES, node).seal((0, 1))

    def broken(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(trust_module, "content_of", broken)
    assert doubts(node) == ["the state file cannot be read: Input/output error"] * 2
