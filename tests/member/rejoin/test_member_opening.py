"""A member's directory is opened as it is, or after a copy."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_start import ensure_member
from cmdlog.member.rejoin import member_opening
from cmdlog.member.rejoin.member_opening import (
    OpeningVerdict,
    decide_start,
    is_damage,
    open_own,
    open_whole,
    prepare_directory,
    wish_copy,
)
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import (
    MemberRemoved,
    MemberTombstone,
    RejoinFile,
    RejoinReason,
    read_tombstone,
    write_tombstone,
)
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import Corrupt, DiskFull, Foreign
from cmdlog.wal.format.cluster_record import MemberStage
from replay.errors import RemoteError, StateDamaged
from tests.member.members import SECRET, SETTINGS, a_cluster
from tests.member.rejoin.copykit import FILES, RECIPIENT, OfferedCopy, ScriptedSource, ground_of, member_of, standing_of
from tests.member.rejoin.test_rejoin_steps import check_made, old_directory
from tests.node.apps.faulty import db

pytestmark = pytest.mark.slow  # the copy comes from a running node


class Opening:
    """Fails as often as it has errors, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.opened = list(errors), 0

    def __call__(self) -> str:
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return "node"


def test_healthy_directory_is_opened_without_a_word_to_anybody(offer: OfferedCopy, tmp_path: Path) -> None:
    """A start costs no question."""
    source, opening = ScriptedSource(offer), Opening()
    assert open_whole(ground_of(old_directory(tmp_path, offer), offer.cluster, source), opening) == "node"
    assert source.wishes == []


def test_first_start_of_a_new_cluster_makes_nothing_here(offer: OfferedCopy, tmp_path: Path) -> None:
    """The others have not begun either, or none of them answers."""
    for sources in ((ScriptedSource(offer, begun=False),), ()):
        prepare_directory(ground_of(tmp_path / "n2", offer.cluster, *sources))
        assert not (tmp_path / "n2").exists()


def test_damaged_directory_is_copied_once(offer: OfferedCopy, tmp_path: Path) -> None:
    """And opened then; what is still damaged after that is an error."""
    directory, damage = old_directory(tmp_path, offer), Corrupt("a block", path="x")
    former = load_instance(FILES, str(directory)).identity.incarnation
    source, opening = ScriptedSource(offer), Opening(damage)
    assert open_whole(ground_of(directory, offer.cluster, source), opening) == "node"
    assert opening.opened == 2
    check_made(directory, offer)
    assert {(wish.former, wish.reason) for wish in source.wishes if wish.reason} == {(former, "damaged")}
    with pytest.raises(Corrupt):
        open_whole(ground_of(directory, offer.cluster, ScriptedSource(offer)), Opening(damage, damage))


@pytest.mark.parametrize("begun", [False, None])
def test_damage_is_the_error_where_no_other_node_has_begun(offer: OfferedCopy, tmp_path: Path, begun: bool | None) -> None:
    """Nothing is changed."""
    directory = old_directory(tmp_path, offer)
    sources = () if begun is None else (ScriptedSource(offer, begun=begun),)
    with pytest.raises(Corrupt):
        open_whole(ground_of(directory, offer.cluster, *sources), Opening(Corrupt("a block", path="x")))
    assert RejoinFile(FILES, str(directory)).read_record() is None


def test_damaged_node_waits_until_another_one_answers(offer: OfferedCopy, tmp_path: Path) -> None:
    """All were started together, or the others are busy: a second later one of them may have begun."""
    directory, source = old_directory(tmp_path, offer), ScriptedSource(offer, begun=False)
    reports: list[Any] = []

    def note_progress(report: Any) -> None:
        reports.append(report)
        source.begun = len(reports) > 5

    ground = ground_of(directory, offer.cluster, source, progress=note_progress)
    assert open_whole(ground, Opening(Corrupt("a block", path="x"))) == "node"
    check_made(directory, offer)
    assert reports[0] == {"step": "copying", "copy": "ABSENT", "why": "the node is damaged, and no other one answers"}


def test_other_errors_of_a_start_lead_to_no_copy(offer: OfferedCopy, tmp_path: Path) -> None:
    """A full disk and a foreign file are not damage."""
    directory = old_directory(tmp_path, offer)
    for error in (DiskFull("no space"), Foreign("another cluster")):
        with pytest.raises(type(error)):
            open_whole(ground_of(directory, offer.cluster, ScriptedSource(offer)), Opening(error))
    assert RejoinFile(FILES, str(directory)).read_record() is None


def test_damage_that_a_replay_process_reports_is_damage() -> None:
    """It has the kind, and not the class."""
    assert is_damage(StateDamaged("torn"))
    assert is_damage(RemoteError(Corrupt("a block", path="x").to_json()))
    assert not is_damage(RemoteError(DiskFull("no space").to_json()))


def test_removed_node_never_starts(offer: OfferedCopy, tmp_path: Path) -> None:
    """Also when a copy was wanted before."""
    directory = old_directory(tmp_path, offer)
    ground = ground_of(directory, offer.cluster, ScriptedSource(offer))
    wish_copy(ground, RejoinReason.DAMAGED, "a block has changed")
    write_tombstone(FILES, str(directory), MemberTombstone(RECIPIENT, b"life-one", {}))
    with pytest.raises(MemberRemoved):
        open_whole(ground, Opening())


def test_node_that_learns_of_its_removal_while_it_asks_leaves_a_tombstone(offer: OfferedCopy, tmp_path: Path) -> None:
    """Its files stay where they are."""
    directory, source = old_directory(tmp_path, offer), ScriptedSource(offer)
    gone = member_of(offer.cluster, RECIPIENT, b"life-one", MemberStage.REMOVED)
    source.standing = lambda _wish: standing_of(source, gone)
    ground = ground_of(directory, offer.cluster, source)
    wish_copy(ground, RejoinReason.DAMAGED, "a block has changed")
    with pytest.raises(MemberRemoved):
        prepare_directory(ground)
    assert read_tombstone(FILES, str(directory)) is not None
    assert (directory / "instance.json").exists()
    assert not (directory / "quarantine").exists()


def test_a_wish_is_not_replaced_by_a_later_one(offer: OfferedCopy, tmp_path: Path) -> None:
    """The first reason is the one that an operator wants to see."""
    ground = ground_of(old_directory(tmp_path, offer), offer.cluster)
    wish_copy(ground, RejoinReason.TOO_FAR_BACK, "away")
    wish_copy(ground, RejoinReason.DAMAGED, "a block has changed")
    record = RejoinFile(FILES, ground.directory).read_record()
    assert record is not None
    assert (record.reason, record.why) == (RejoinReason.TOO_FAR_BACK, "away")
    assert record.former == member_opening.former_life(ground)


@pytest.mark.parametrize(
    ("node", "other_cluster", "match"),
    [(1, False, "is node 2's, not node 1's"), (2, True, "the cluster file is another cluster's")],
)
def test_directory_of_another_node_or_cluster_is_refused(tmp_path: Path, node: int, other_cluster: bool, match: str) -> None:
    """Before anybody is asked: the cluster would have it copied over, since its life is not the one that node has."""
    cluster = a_cluster(3)
    ensure_member(
        FILES, str(tmp_path), SETTINGS, db, target=None, cluster=cluster, node=2, try_code=lambda _bundle, _settings: None
    )
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    file = dataclasses.replace(cluster, cluster_id=bytes(16)) if other_cluster else cluster

    opening = Opening()
    with pytest.raises(Foreign, match=match) as refused:
        open_own(RejoinGround(FILES, str(tmp_path), MemberGround(file, node, SECRET)), opening)
    assert opening.opened == 0
    assert refused.value.exit_code == 11
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("peer", "listen", "tls", "warned"),
    [
        ("10.0.0.1", None, False, ["10.0.0.1"]),
        ("127.0.0.1", "192.168.0.1", False, ["192.168.0.1"]),
        ("127.0.0.1", "127.0.0.2", False, []),
        ("10.0.0.1", None, True, []),
    ],
)
def test_start_warns_of_peers_beyond_loopback_without_tls(
    tmp_path: Path, peer: str, listen: str | None, tls: bool, warned: list[str]
) -> None:
    """As of clients, and before the first of them is asked for a copy."""
    cluster = a_cluster(1)
    members = (dataclasses.replace(cluster.members[0], peer=(peer, 7)),)
    place = (listen, 7) if listen else None
    secured: Any = object() if tls else None
    member = MemberGround(dataclasses.replace(cluster, members=members), 1, SECRET, place, tls=secured)

    with capture_logs() as lines:
        before_opening = open_own(RejoinGround(FILES, str(tmp_path / "n1"), member), lambda: len(lines))
    hosts = [line["host"] for line in lines if (line["event"], line["log_level"]) == ("not_encrypted", "warning")]
    assert (hosts, before_opening) == (warned, len(warned))


def test_exactly_one_row_holds_for_whatever_a_directory_shows() -> None:
    """What it shows decides, whatever the peers would say; an empty one asks them, and only an empty one is ever created."""
    for tombstone, rejoin, instance in itertools.product((True, False), repeat=3):
        shown = {"has_tombstone": tombstone, "has_rejoin": rejoin, "has_instance": instance}
        found = [decide_start(**shown, has_begun=begun) for begun in (None, True, False)]
        if tombstone:
            assert found == [OpeningVerdict.REFUSE] * 3
        elif rejoin:
            assert found == [OpeningVerdict.RESUME] * 3
        elif instance:
            assert found == [OpeningVerdict.OPEN] * 3
        else:
            assert found == [None, OpeningVerdict.COPY, OpeningVerdict.CREATE]
