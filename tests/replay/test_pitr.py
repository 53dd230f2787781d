"""Point-in-time recovery over the whole history: ring, archive and snapshots against a model that stopped at that transaction."""

from __future__ import annotations

import random
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.log import Log
from cmdlog.wal.opening.home import adopt
from replay.errors import UntilBeyond, UntilUnreachable
from replay.plan.node_plan import Plan, Planned
from replay.plan.planner import PAST, make_plan
from replay.plan.until import parse_until
from replay.recover.in_place import bring_up
from replay.recover.to_directory import rebuild
from snapshot.archive_layout import list_segments
from tests.replay.archiverig import ArchiveRig, plan_for
from tests.replay.rig import balances_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used several times over; tests that change it take a copy."""
    rig = ArchiveRig(tmp_path_factory.mktemp("history"), segments=6)
    for factor in range(2, 8):  # more versions of the code than a checkpoint keeps for itself
        rig.rotate(2, batches=16)
        rig.add_catalog(factor)
    rig.rotate(1)
    rig.close()
    return rig


@pytest.fixture
def copy(history: ArchiveRig, tmp_path: Path) -> Path:
    """A copy of the node, to be damaged."""
    shutil.copytree(history.directory, tmp_path / "copy")
    return tmp_path / "copy"


def recovered(directory: Path, out: Path, until: int) -> dict[int, int]:
    """Balances that a recovery into another directory finds."""
    rebuild(make_plan(RealFiles(), str(directory), PAST, until=until), RealFiles(), str(out), workers=0)
    return balances_of(str(out))


def segments_of(rig: ArchiveRig, directory: Path) -> list[Path]:
    """Archived segments of a copy, oldest first."""
    return [Path(s.path) for s in list_segments(RealFiles(), str(directory), rig.identity)]


def early(rig: ArchiveRig, share: float = 0.1) -> tuple[int, dict[int, int]]:
    """A transaction of the past, and the balances after it."""
    return rig.history[int(len(rig.history) * share)]


def test_history_left_the_ring(history: ArchiveRig) -> None:
    """The fixture is what it is meant to be: most segments and snapshots are in the archive, and no moment is lost."""
    segments = segments_of(history, Path(history.directory))
    assert len(segments) > 2 * history.wal.instance.segments
    assert [name.removesuffix(".seg") for name in history.names(".seg")] == [
        name.removesuffix(".json") for name in history.names(".json") if name.startswith("log-")
    ]
    assert history.archiver.status()["oldest_txn"] == "0"


def test_every_random_transaction_equals_the_model(history: ArchiveRig, tmp_path: Path) -> None:
    """For transactions all over the history, the balances are exactly those of a model that stopped there."""
    chance = random.Random(5)
    beginning = 2 * 3  # the accounts are opened
    for n, (txn, balances) in enumerate(chance.sample(history.history[beginning:], 25)):
        assert history.recovered(tmp_path / f"out{n}", txn) == balances, txn
        shutil.rmtree(tmp_path / f"out{n}")


def test_a_time_goes_by_the_clock_of_transactions(history: ArchiveRig, tmp_path: Path) -> None:
    """`--until TIME` before every live snapshot is the state after the last transaction of that millisecond."""
    txn, balances = early(history)
    moment = datetime.fromtimestamp((txn >> 21) / 1000, UTC).isoformat(timespec="milliseconds")
    assert history.recovered(tmp_path / "out", parse_until(moment)) == balances


def test_recovered_node_gives_no_transaction_id_again(history: ArchiveRig, tmp_path: Path) -> None:
    """However early the moment: the new node's ids go on above all that the old one ever gave."""
    txn, _ = early(history)
    history.recovered(tmp_path / "out", txn)
    wal = Log.open(RealFiles(), str(tmp_path / "out"))
    assert wal.recovered.txn_id_max >= history.last_txn
    wal.close()


def test_plan_names_the_archive_files_and_is_carried_out_by_workers(history: ArchiveRig, tmp_path: Path) -> None:
    """The plan says what it will read; written to a file and applied by processes it gives the same state."""
    txn, balances = early(history)
    plan = Plan.from_json(plan_for(history.directory, txn).to_json())
    assert set(plan.archive) <= set(history.names(".seg"))
    assert plan.archive[0].split("-")[3] == f"{plan.from_block:016d}"
    rebuild(Planned.of(RealFiles(), plan), RealFiles(), str(tmp_path / "out"), workers=2)
    assert balances_of(str(tmp_path / "out")) == balances


def test_what_lies_behind_the_moment_is_not_read(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """An early moment needs no later segment: all of those may be nonsense."""
    txn, balances = early(history)
    plan = plan_for(copy, txn)
    later = [path for path in segments_of(history, copy) if path.name > plan.archive[-1]]
    assert len(later) > 5
    for path in later[:-1]:  # the last one's head ties the others to the log
        data = bytearray(path.read_bytes())
        data[4096:] = bytes(len(data) - 4096)
        path.write_bytes(data)
    rebuild(make_plan(RealFiles(), str(copy), PAST, until=txn), RealFiles(), str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == balances


def test_archive_is_not_looked_at_without_need(history: ArchiveRig, copy: Path) -> None:
    """A moment behind the live snapshots reads no archived file, so that damage there does not matter."""
    for path in segments_of(history, copy):
        path.write_bytes(b"nonsense")
    assert plan_for(copy, history.history[-1][0]).archive == ()
    assert plan_for(copy, None).archive == ()


def test_archive_stands_in_when_all_live_snapshots_are_lost(history: ArchiveRig, copy: Path) -> None:
    """A plain recovery goes back into the archive rather than fail, and ends where the log does."""
    shutil.rmtree(copy / "snapshots")
    (copy / "snapshots").mkdir()
    adopt(RealFiles(), str(copy))
    wal = Log.open(RealFiles(), str(copy))
    plan, _ = bring_up(RealFiles(), wal)
    wal.close()
    assert plan.archive
    assert balances_of(str(copy)) == history.history[-1][1]


def test_damaged_base_falls_back_to_an_older_one(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """The snapshot before the moment is damaged: an older one and more of the archive give the same state."""
    txn, balances = early(history, 0.5)
    planned = plan_for(copy, txn)
    for part in planned.partitions:
        (image,) = copy.rglob(f"*{part.name}/image.sqlite")
        data = bytearray(image.read_bytes())
        data[5000] ^= 1
        image.write_bytes(data)
    again = make_plan(RealFiles(), str(copy), PAST, until=txn)
    assert again.plan.from_block < planned.from_block
    rebuild(again, RealFiles(), str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == balances


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["file", "both"])
def test_missing_file_is_refused_with_the_range(history: ArchiveRig, copy: Path, which: int, how: str) -> None:
    """First or middle file of what is needed gone, with or without its manifest: refused, naming what is missing."""
    txn, _ = early(history, 0.0) if which == 0 else early(history)
    needed = plan_for(copy, txn).archive
    name = needed[which]
    victim = copy / "archive" / name
    first, last = (int(part) for part in name.removesuffix(".seg").split("-")[3:5])
    victim.unlink()
    if how == "both":
        victim.with_suffix(".json").unlink()
    with pytest.raises(UntilUnreachable) as refused:
        plan_for(copy, txn)
    text = str(refused.value)
    assert f"blocks {first} to {last} " in text
    assert name in text
    assert "transactions " in text
    assert "Z to 20" in text or "the beginning to 20" in text
    assert refused.value.exit_code == 1


def flip(path: Path, offset: int) -> None:
    """Changes one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("offset", [16, 100, 4096 + 20, 4096 + 3000, -20])
def test_flipped_bit_is_refused_or_makes_no_difference(history: ArchiveRig, copy: Path, tmp_path: Path, offset: int) -> None:
    """A bit of a needed file has changed, anywhere: refused naming the file, or the very same state."""
    txn, balances = early(history)
    name = plan_for(copy, txn).archive[0]
    flip(copy / "archive" / name, offset)
    found, why = balances, ""
    try:
        found = recovered(copy, tmp_path / "out", txn)
    except UntilUnreachable as refused:
        why = str(refused)
    assert found == balances
    assert why.count(name) == bool(why)


def test_refusal_names_the_damage_once_and_what_can_be_restored(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """Short; file and offset stand in it once; every moment that the hint names can really be restored."""
    segments = segments_of(history, copy)
    manifest = list_segments(RealFiles(), str(copy), history.identity)[6].manifest
    assert manifest is not None
    data = bytearray(segments[6].read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    segments[6].write_bytes(data)
    low, high = min(of.first for of in manifest.partitions.values()), max(of.last for of in manifest.partitions.values())
    inside = [txn for txn, _ in history.history if low <= txn <= high]
    txn = inside[len(inside) // 2]
    with pytest.raises(UntilUnreachable) as refused:
        plan_for(copy, txn)
    text = str(refused.value)
    assert text.count(segments[6].name) == 1
    assert f"{segments[6]} at offset 4096" in text
    assert f"blocks {manifest.first_block} to {manifest.last_block} " in text
    assert len(text) < 1500
    moments = re.findall(r"transactions (\d+) to (\d+)", refused.value.hint)
    assert len(moments) == 2
    assert int(moments[0][1]) < txn < int(moments[1][0])
    for n, moment in enumerate(int(found) for pair in moments for found in pair):
        expected = next((balances for known, balances in reversed(history.history) if known <= moment), {})
        assert recovered(copy, tmp_path / f"out{n}", moment) == expected


def test_moment_that_has_not_come_is_refused(history: ArchiveRig, copy: Path) -> None:
    """Behind the newest transaction, by number and by time: refused with the newest one; the newest itself is restored."""
    newest = history.history[-1][0]
    for until in (newest + (1 << 21), parse_until("2999-01-01T00:00:00Z")):
        with pytest.raises(UntilBeyond, match=f"was not reached: the newest restorable moment is transaction {history.last_txn}"):
            plan_for(copy, until)
    assert plan_for(copy, newest).partitions
    assert UntilBeyond.exit_code == 1


def test_moment_before_the_first_transaction_is_refused(history: ArchiveRig, copy: Path) -> None:
    """Before the node had done anything there is no state to restore; the message names the first transaction."""
    with pytest.raises(UntilBeyond, match=r"is before the first one, \d+, 20\d\d-.*Z"):
        plan_for(copy, parse_until("1999-01-01T00:00:00Z"))


def test_lost_manifests_cost_nothing(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """The segments say for themselves whose they are and how they follow each other."""
    txn, balances = early(history)
    for manifest in (copy / "archive").glob("log-*.json"):
        manifest.unlink()
    rebuild(make_plan(RealFiles(), str(copy), PAST, until=txn), RealFiles(), str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == balances


def test_files_of_another_node_are_refused(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """A file of another node under the right name is named as such, and nothing is restored from it."""
    (tmp_path / "other").mkdir()
    other = ArchiveRig(tmp_path / "other", segments=6)
    other.rotate(4)
    other.close()
    txn, _ = early(history)
    name = plan_for(copy, txn).archive[0]
    shutil.copyfile(segments_of(other, Path(other.directory))[0], copy / "archive" / name)
    with pytest.raises(UntilUnreachable, match=r"is a segment of cluster .*; this directory belongs to"):
        plan_for(copy, txn)


def test_swapped_and_renamed_files_are_refused(history: ArchiveRig, copy: Path) -> None:
    """Two files of this node that have changed places: neither is taken for the other."""
    txn, _ = early(history)
    first, second = (copy / "archive" / name for name in plan_for(copy, txn).archive[:2])
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    with pytest.raises(UntilUnreachable, match="it was renamed"):
        plan_for(copy, txn)


@pytest.mark.parametrize(
    "name", ["log-../../etc-n1-1-2.seg", "snap-00000000-n1-..", "log-%2f.seg", "x" * 250, "tmp-nothing.json"]
)
def test_strange_names_are_left_alone(history: ArchiveRig, copy: Path, name: str) -> None:
    """Only names of the strict form are looked at."""
    (copy / "archive" / name.replace("/", "_")).write_bytes(b"x")
    assert plan_for(copy, early(history)[0]).archive


def test_links_out_of_the_archive_hold_only_what_is_ours(history: ArchiveRig, copy: Path, tmp_path: Path) -> None:
    """A link under a good name to something else is a damaged file."""
    txn, _ = early(history)
    path = copy / "archive" / plan_for(copy, txn).archive[0]
    path.unlink()
    (tmp_path / "secret").write_bytes(b"root:x:0:0" * 1000)
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(UntilUnreachable, match="is damaged"):
        plan_for(copy, txn)
