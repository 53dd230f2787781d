"""`cmdlog archive` and `recover --until` as an operator meets them: what is shown, refused, and with which exit code."""

from __future__ import annotations

import re
import shlex
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cmdlog.node.background.archiver import Rules
from cmdlog.wal.files import RealFiles
from snapshot.archive.archive_retention import end_promise, promise_end, read_promise, write_promise
from tests.commands import Command
from tests.replay.archiverig import ArchiveRig
from tests.replay.rig import balances_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node with an archive."""
    rig = ArchiveRig(tmp_path_factory.mktemp("history"), segments=6)
    rig.rotate(5)
    rig.point()
    rig.rotate(2)
    rig.close()
    return rig


@pytest.fixture
def node(history: ArchiveRig, tmp_path: Path) -> Path:
    """A copy to work on."""
    shutil.copytree(history.directory, tmp_path / "node")
    return tmp_path / "node"


def test_list_shows_files_transactions_times_and_the_promise(history: ArchiveRig, node: Path, command: Command) -> None:
    """Every file with what it holds, and no gap."""
    code, (found,) = command.values("archive", "list", node)
    assert code == 0
    assert [row["name"] for row in found["files"] if row["kind"] == "segment"] == history.names(".seg")
    segment = found["files"][0]
    assert set(segment["transactions"]) == {"0", "1"}
    assert segment["from_time"].startswith("2023-11-14T")
    assert found["missing_blocks"] == []
    assert found["bytes"] == sum(row["bytes"] for row in found["files"])
    assert len(found["points"]) == 1
    code, text = command.text("archive", "list", node)
    assert code == 0
    assert "Archive: " in text


@pytest.mark.parametrize("group", ["archive", "snapshot"])
@pytest.mark.parametrize("flipped", [True, False])
def test_verify_names_a_damaged_recovery_point(node: Path, command: Command, group: str, flipped: bool) -> None:
    """Which file, what it says that it needs, and how to find out whether its moment is still there: exit code 10, one line."""
    (point,) = (node / "snapshots" / "points").iterdir()
    assert command(group, "verify", node)[0] == 0
    whole = point.read_text()
    point.write_text(whole.replace('"from_block": ', '"from_block": 1') if flipped else whole[:20])
    code, (_, failed) = command.values(group, "verify", node)
    message, hint = failed["error"]["message"], failed["error"]["hint"]
    assert (code, failed["error"]["exit_code"], f"snapshots/points/{point.name}" in message) == (10, 10, True)
    assert ("it says that it needs snapshots p0000" if flipped else "what it needs cannot be read") in message
    assert command(*shlex.split(hint.split("`")[1])[1:])[0] == 0, "the moment can be restored"
    point.unlink()
    assert command(group, "verify", node)[0] == 0


def test_verify_passes_a_whole_archive_and_names_what_is_not(history: ArchiveRig, node: Path, command: Command) -> None:
    """0 when whole; 10 for a flip, a lost file, another predecessor; 11 for a file of elsewhere."""
    assert command.values("archive", "verify", node)[0] == 0
    paths = sorted((node / "archive").glob("log-*.seg"))
    whole = paths[1].read_bytes()
    for at in (20, 4096 + 8, len(whole) - 100):
        damaged = bytearray(whole)
        damaged[at] ^= 16
        paths[1].write_bytes(damaged)
        code, lines = command.values("archive", "verify", node)
        assert code == 10
        (bad,) = [row for row in lines[0]["files"] if "problem" in row]
        assert bad["name"] == paths[1].name
    paths[1].write_bytes(paths[2].read_bytes())
    assert command.values("archive", "verify", node)[0] == 11
    paths[1].unlink()
    code, text = command.text("archive", "verify", node)
    assert code == 10
    assert f"{paths[1]} is missing" in text
    paths[1].with_suffix(".json").unlink()
    code, lines = command.values("archive", "verify", node)
    first, last = (int(part) for part in paths[1].stem.split("-")[3:5])
    assert (code, lines[0]["missing_blocks"]) == (10, [[first, last]])


def test_verify_reads_snapshots_too(node: Path, command: Command) -> None:
    """A flip in an archived image is found."""
    image = next((node / "archive").glob("snap-*/image.sqlite"))
    data = bytearray(image.read_bytes())
    data[9000] ^= 1
    image.write_bytes(data)
    code, lines = command.values("archive", "verify", node)
    assert code == 10
    assert any("image.sqlite has changed" in row.get("problem", "") for row in lines[0]["files"])


@pytest.mark.parametrize("harm", ["none", "removed", "damaged", "none left"])
def test_the_oldest_moment_is_that_of_a_whole_snapshot(node: Path, command: Command, harm: str) -> None:
    """A snapshot that is gone leaves no hole in the blocks: only the moment from which on every one can be restored tells."""
    assert command.values("archive", "verify", node)[1][0]["oldest_txn"] == "0"
    assert "every moment since the beginning can be restored" in command.text("archive", "list", node)[1]
    for file in sorted((node / "archive").glob("log-*"))[:2]:  # what a window without its first moments leaves, and its manifest
        file.unlink()
    oldest = int(command.values("archive", "list", node)[1][0]["oldest_txn"])
    folders = [*(node / "archive").glob("snap-*"), *(node / "snapshots").glob("p0*")]
    shown = {row["name"]: int(row["txn_id"]) for row in command.values("archive", "list", node)[1][0]["files"] if "txn_id" in row}
    for folder in folders if harm != "none" else []:
        if harm == "none left" or shown.get(folder.name, oldest + 1) <= oldest:
            if harm == "damaged":
                (folder / "image.sqlite").write_bytes(b"")
            else:
                shutil.rmtree(folder)
    reach = command.values("archive", "verify", node)[1][0]
    if harm == "none left":
        assert reach["oldest_txn"] is None
        assert "no moment can be restored" in command.text("archive", "list", node)[1]
        return
    assert (int(reach["oldest_txn"]) > oldest) is (harm != "none")
    assert f"every moment from {reach['oldest_time']} on can be restored" in command.text("archive", "verify", node)[1]
    for number, (until, restored) in enumerate([(int(reach["oldest_txn"]), True), (int(reach["oldest_txn"]) - 1, False)]):
        code, _ = command.values("recover", node, "--until", until, "--to", node.parent / f"back{number}")
        assert (code == 0) is restored


def test_prune_refuses_what_was_promised_unless_forced(node: Path, command: Command) -> None:
    """The promise of the node's last run and the points hold; `--force` gives them up, and only moments before go."""
    listed = command.values("archive", "list", node)[1][0]["files"]
    before = sorted(path.name for path in (node / "archive").iterdir())
    code, lines = command.values("archive", "prune", node, "--older-than", "1s")
    assert code == 1
    assert "promised window" in lines[-1]["error"]["message"]
    assert "nothing was removed" in lines[-1]["error"]["hint"]
    assert sorted(path.name for path in (node / "archive").iterdir()) == before
    code, lines = command.values("archive", "prune", node, "--older-than", "1s", "--force", "--dry-run")
    assert (code, lines[0]["removed"]) == (0, [])
    assert lines[0]["would_remove"]
    code, lines = command.values("archive", "prune", node, "--older-than", "1s", "--force")
    assert code == 0
    assert lines[0]["removed"]
    assert len(listed) > len(command.values("archive", "list", node)[1][0]["files"])


def test_blocks_that_went_without_a_window_are_no_damage(tmp_path: Path, command: Command) -> None:
    """After a start without the window: exit code 1, since the promise is not kept, and not 10 with files to bring back."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(6)
    rig.archiver.stop()
    rig.rules = Rules(window_s=0.0, bytes_max=0, when_full="stop")
    rig.attach()
    rig.rotate(4)
    rig.close()
    code, (listed, failed) = command.values("archive", "verify", rig.directory)
    assert len(listed["missing_blocks"]) == 1
    assert (code, failed["error"]["exit_code"]) == (1, 1)
    assert "--retention-window-s" in failed["error"]["hint"]
    lost = sorted((Path(rig.directory) / "archive").glob("log-*.seg"))[1]
    lost.with_suffix(".json").unlink()
    lost.unlink()
    assert command.values("archive", "verify", rig.directory)[0] == 10


def test_promise_that_is_not_kept_is_told_until_it_is_taken_back(node: Path, command: Command) -> None:
    """A node that runs without the window that it promised: 1 with what to do, also of a whole archive, until it is pruned."""
    files = RealFiles()
    end_promise(files, str(node), now_millis=1_700_000_000_000)
    code, (listed, failed) = command.values("archive", "verify", node)
    assert (code, listed["promise_ended"]) == (1, "2023-11-14T22:13:20.000Z")
    assert "runs without since 2023-11-14T22:13:20.000Z" in failed["error"]["message"]
    code, text = command.text("archive", "list", node)
    assert (code, "is not kept since 2023-11-14T22:13:20.000Z" in text) == (0, True)
    for arguments in (
        ("--older-than", "0s"),
        ("--older-than", "0s", "--force", "--dry-run"),
        ("--older-than", "2023-01-01T00:00:00Z"),
    ):
        command("archive", "prune", node, *arguments)
        assert promise_end(files, str(node)) is not None, arguments
    assert command.text("archive", "prune", node, "--older-than", "0s", "--force")[0] == 0
    assert (read_promise(files, str(node)), promise_end(files, str(node))) == (0, None)
    assert command.text("archive", "verify", node)[0] == 0


@pytest.mark.parametrize("damage", ["flipped", "emptied"])
def test_verify_names_a_damaged_promise(node: Path, command: Command, damage: str) -> None:
    """Which file, exit code 10, and the way that the error names ends it."""
    path = node / "archive" / "promise.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"window_s", b"windov_s") if damage == "flipped" else b"")
    code, (listed, failed) = command.values("archive", "verify", node)
    assert (code, failed["error"]["exit_code"]) == (10, 10)
    assert f"{path} is damaged" in failed["error"]["message"]
    assert str(path) in listed["promise_problem"]
    code, text = command.text("archive", "list", node)
    assert (code, "is damaged" in text) == (0, True)
    assert command(*shlex.split(failed["error"]["hint"].split("`")[1])[1:])[0] == 0
    assert command.text("archive", "verify", node)[0] == 0


def test_prune_keeps_what_later_moments_need(history: ArchiveRig, node: Path, command: Command, tmp_path: Path) -> None:
    """With the window switched off, older files go without force, points excepted, and later moments stay restorable."""
    write_promise(RealFiles(), str(node), window_s=0)
    shutil.rmtree(node / "snapshots" / "points")
    txn, balances = history.history[len(history.history) * 3 // 4]
    moment = datetime.fromtimestamp((txn >> 21) / 1000, UTC).isoformat(timespec="milliseconds")
    code, lines = command.values("archive", "prune", node, "--older-than", moment)
    assert code == 0
    assert lines[0]["removed"]
    code, _ = command.values("recover", node, "--until", txn, "--to", tmp_path / "out")
    assert code == 0
    assert balances_of(str(tmp_path / "out")) == balances
    code, lines = command.values("recover", node, "--until", history.history[7][0], "--to", tmp_path / "out2")
    assert code == 1
    assert "cannot be read" in lines[-1]["error"]["message"]


def test_prune_wants_an_age_or_a_time(node: Path, command: Command) -> None:
    """Anything else is a mistake of usage."""
    for text in ("yesterday", "2026-01-01T00:00:00", "-3d"):
        assert command.values("archive", "prune", node, f"--older-than={text}")[0] == 2


def test_plan_shows_the_archive_files_that_it_reads(history: ArchiveRig, node: Path, command: Command) -> None:
    """For people and as JSON."""
    txn = history.history[10][0]
    _, (plan,) = command.values("recover", node, "--until", txn, "--plan")
    assert plan["archive"]
    _, text = command.text("recover", node, "--until", txn, "--plan")
    assert plan["archive"][0] in text


def test_refusal_names_what_is_missing(history: ArchiveRig, node: Path, command: Command, tmp_path: Path) -> None:
    """What an operator needs to look for the file elsewhere; nothing is left of the new directory."""
    txn = history.history[10][0]
    name = command.values("recover", node, "--until", txn, "--plan")[1][0]["archive"][0]
    (node / "archive" / name).unlink()
    code, lines = command.values("recover", node, "--until", txn, "--to", tmp_path / "out")
    assert code == 1
    message = lines[-1]["error"]["message"]
    for part in ("blocks 1 to ", name, "is missing", "transactions ", "2023-11-14T"):
        assert part in message
    assert not (tmp_path / "out").exists()


def test_other_directories_are_refused(tmp_path: Path, command: Command) -> None:
    """A folder that is no node is no archive."""
    assert command.values("archive", "list", tmp_path)[0] == 1
    assert command.values("archive", "verify", tmp_path / "nothing")[0] == 1


@pytest.mark.parametrize(
    ("until", "said"), [("2999-01-01T00:00:00Z", "was not reached"), ("1999-01-01T00:00:00Z", "is before the")]
)
def test_moment_that_never_was_is_refused(node: Path, command: Command, tmp_path: Path, until: str, said: str) -> None:
    """In the future, or before the node had done anything: exit code 1, a message that names the nearest moment, no directory."""
    code, printed = command.values("recover", node, "--until", until, "--to", tmp_path / "out")
    error = printed[-1]["error"]
    assert (code, error["kind"], error["exit_code"]) == (1, "UntilBeyond", 1)
    assert said in error["message"]
    assert re.search(r"\d{19}, 20\d\d-\d\d-\d\dT", error["message"])
    assert "omit --until" in error["hint"]
    assert not (tmp_path / "out").exists()


def test_export_at_a_point_holds_all_partitions_as_of_one_transaction(
    history: ArchiveRig, node: Path, command: Command, tmp_path: Path
) -> None:
    """The tables of every partition are those of one moment, also of one before every live snapshot; nothing else is left."""
    before = sorted(path for path in node.rglob("*"))
    for n, share in enumerate((0.2, 0.6)):
        txn, balances = history.history[int(len(history.history) * share)]
        code, (value,) = command.values("snapshot", "export", node, "--to", tmp_path / f"out{n}", "--point", txn)
        assert (code, value["point"]) == (0, str(txn))
        assert all(int(source["txn_id"]) <= txn for source in value["snapshots"].values())
        (file,) = (table["file"] for table in value["tables"] if table["table"] == "accounts")
        rows = pq.read_table(tmp_path / f"out{n}" / file).to_pylist()
        assert {row["id"]: row["balance"] for row in rows} == balances
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node", "out0", "out1"]
    assert sorted(path for path in node.rglob("*")) == before


def test_export_at_a_point_that_never_was_leaves_nothing(node: Path, command: Command, tmp_path: Path) -> None:
    """Refused like a recovery to it; `--snapshot` beside it is a wrong call."""
    code, (value,) = command.values("snapshot", "export", node, "--to", tmp_path / "out", "--point", "2999-01-01T00:00:00Z")
    assert (code, value["error"]["kind"]) == (1, "UntilBeyond")
    assert command.values("snapshot", "export", node, "--to", tmp_path / "out", "--point", "1", "--snapshot", "x")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
