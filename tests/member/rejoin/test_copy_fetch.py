"""A copy is fetched from one source after another; what has arrived is never fetched twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_values import CopyEnding, CopyRefused, CopyWait, RefusalCode
from cmdlog.member.rejoin.copied_files import CopiedFiles
from cmdlog.member.rejoin.copy_fetch import AdmissionLost, CopyFetch, in_order
from cmdlog.member.rejoin.rejoin_record import RejoinReason, RejoinRecord, RejoinState
from cmdlog.wal.errors import DiskFull
from cmdlog.wal.format.cluster_record import MemberStage
from tests.member.rejoin.copykit import FILES, LIFE, OfferedCopy, ScriptedSource, ground_of

pytestmark = pytest.mark.slow  # the copy comes from a running node

VOTES = {0: (3, 1), 1: (3, None)}
RECORD = RejoinRecord(RejoinState.COPYING, RejoinReason.EMPTY, "", incarnation=LIFE, votes=VOTES)


class Fetch:
    """A recipient's fetch, and what it reports."""

    def __init__(self, tmp_path: Path, offer: OfferedCopy, *sources: ScriptedSource) -> None:
        (tmp_path / "n2").mkdir(exist_ok=True)
        self.reports: list[Any] = []
        self.copied = CopiedFiles(FILES, str(tmp_path / "n2"))
        ground = ground_of(tmp_path / "n2", offer.cluster, *sources, progress=self.reports.append)
        self.fetch = CopyFetch(ground, RECORD, self.copied)
        self.addresses = [MemberAddress(source.node, ("127.0.0.1", 1), "") for source in sources]

    def run(self) -> bool:
        """Whether all of the copy is here."""
        return self.fetch.fetch_from(self.addresses) is not None


def chunks_of(offer: OfferedCopy) -> int:
    """Of the whole copy."""
    source = ScriptedSource(offer)
    return sum(len(list(source.read_chunks(b"", file))) for file in offer.manifest.files)


def test_all_of_a_copy_is_fetched_once(offer: OfferedCopy, tmp_path: Path) -> None:
    """The source is asked with the terms that the old directory showed, and hears that it may let go."""
    source = ScriptedSource(offer)
    fetch = Fetch(tmp_path, offer, source)
    assert fetch.run()
    assert len(source.chunks) == len(set(source.chunks)) == chunks_of(offer)
    assert source.requests[0].groups == {0: (3, 0), 1: (3, 0)}
    assert source.endings == [CopyEnding.DONE]
    assert fetch.copied.read_manifest().partitions == offer.manifest.partitions
    assert fetch.reports[0].items() >= {"step": "copying", "copy": "COPYING", "source": 1}.items()
    assert {"percent", "bytes", "bytes_total", "rate", "left_s"} <= fetch.reports[0].keys()


@pytest.mark.parametrize("lost_after", range(1, 4))
def test_another_source_continues_where_the_first_was_lost(offer: OfferedCopy, tmp_path: Path, lost_after: int) -> None:
    """Chunks that arrived are not fetched again, of whole files and of the one under way."""
    first, second = ScriptedSource(offer, lost_after=lost_after), ScriptedSource(offer, node=3)
    assert Fetch(tmp_path, offer, first, second).run()
    assert not set(first.chunks) & set(second.chunks)
    assert len(first.chunks) + len(second.chunks) == chunks_of(offer)


def test_a_later_start_continues(offer: OfferedCopy, tmp_path: Path) -> None:
    """With nothing but what is on disk."""
    first, second = ScriptedSource(offer, lost_after=3), ScriptedSource(offer)
    assert not Fetch(tmp_path, offer, first).run()
    assert Fetch(tmp_path, offer, second).run()
    assert not set(first.chunks) & set(second.chunks)


def test_source_that_sends_other_bytes_is_left(offer: OfferedCopy, tmp_path: Path) -> None:
    """Nothing of what it sent stays."""
    liar, honest = ScriptedSource(offer, damage=True), ScriptedSource(offer, node=3)
    assert Fetch(tmp_path, offer, liar, honest).run()
    assert len(honest.chunks) == chunks_of(offer)


@pytest.mark.parametrize("code", ["stale_term", "already_copying", "busy", "unknown_copy", "file_lost", "unavailable"])
def test_refusal_that_is_the_sources_own_leads_to_another_one(offer: OfferedCopy, tmp_path: Path, code: str) -> None:
    """Nothing is wrong with the recipient."""
    first, second = ScriptedSource(offer, answers=[CopyRefused(code, "so")]), ScriptedSource(offer, node=3)
    assert Fetch(tmp_path, offer, first, second).run()
    assert second.chunks


@pytest.mark.parametrize("code", ["wrong_recipient", "not_admitted", "deleted"])
def test_refusal_of_this_life_asks_the_cluster_again(offer: OfferedCopy, tmp_path: Path, code: str) -> None:
    """The source may lag, or the node may have been replaced."""
    with pytest.raises(AdmissionLost):
        Fetch(tmp_path, offer, ScriptedSource(offer, answers=[CopyRefused(code, "so")])).run()


@pytest.mark.parametrize("code", ["cancelled", "not_behind", "bad_request", "a_newer_word"])
def test_other_refusals_end_the_start_by_name(offer: OfferedCopy, tmp_path: Path, code: str) -> None:
    """An operator has cancelled it, or something is wrong that asking again does not mend."""
    with pytest.raises(CopyRefused) as refused:
        Fetch(tmp_path, offer, ScriptedSource(offer, answers=[CopyRefused(code, "so")])).run()
    assert refused.value.code == code


def test_terms_are_not_stated_to_sources_that_all_refuse_them(offer: OfferedCopy, tmp_path: Path) -> None:
    """A node that was alone may know a term that no other ever had; the copy's terms are raised to it anyway."""
    stale = CopyRefused(RefusalCode.STALE_TERM, "so")
    sources = [ScriptedSource(offer, answers=[stale]), ScriptedSource(offer, node=3, answers=[stale])]
    fetch = Fetch(tmp_path, offer, *sources)
    assert not fetch.run()
    assert fetch.run()
    assert sources[0].requests[-1].groups == {}


def test_source_that_makes_a_snapshot_is_waited_for(offer: OfferedCopy, tmp_path: Path) -> None:
    """The report says why."""
    source = ScriptedSource(offer, answers=[CopyWait(3.0, "takes snapshots"), CopyWait(0.1, "takes snapshots")])
    fetch = Fetch(tmp_path, offer, source)
    assert fetch.run()
    assert {report.get("why") for report in fetch.reports} == {"takes snapshots", None}


def test_source_whose_log_does_not_state_this_life_is_not_copied(offer: OfferedCopy, tmp_path: Path) -> None:
    """The node would not know that it is a member."""
    for stage, life in ((MemberStage.JOINING, LIFE), (MemberStage.ADMITTED, b"life-six")):
        with pytest.raises(AdmissionLost):
            Fetch(tmp_path, offer, ScriptedSource(offer, answers=[offer.admitting(life, stage)])).run()


def test_copy_of_another_shape_is_not_taken(offer: OfferedCopy, tmp_path: Path) -> None:
    """A partition is missing."""
    manifest = offer.admitting(LIFE)
    less = replace(manifest, partitions={0: manifest.partitions[0]})
    source = ScriptedSource(offer, answers=[less])
    assert not Fetch(tmp_path, offer, source).run()
    assert not source.chunks


def test_copy_that_the_volume_cannot_take_is_not_begun(
    offer: OfferedCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the numbers, and says that what is here stays."""
    free = type("Volume", (), {"f_bavail": 1, "f_frsize": 4096})
    monkeypatch.setattr("os.statvfs", lambda _path: free)
    source = ScriptedSource(offer)
    with pytest.raises(DiskFull, match=r"needs .* bytes .* has 4096") as full:
        Fetch(tmp_path, offer, source).run()
    assert "resumed" in full.value.hint
    assert not source.chunks


def test_leader_is_the_last_source() -> None:
    """It has the most to do."""
    members = tuple(MemberAddress(node, ("h", node), "") for node in (1, 2, 3))
    assert [member.node for member in in_order(members, leader=2)] == [1, 3, 2]
