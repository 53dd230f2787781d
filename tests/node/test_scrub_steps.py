"""The scrub's steps over a fake reader and a fake clock: when, how fast, in which order, and what a failure costs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.scrub.damage_repair import RepairHooks
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES
from cmdlog.node.scrub.file_scan import Damage, Scanned, SliceOrder
from cmdlog.node.scrub.scrub_plan import ScrubItem, ScrubPlan
from cmdlog.node.scrub.scrub_reader import ReadingFailed, ScrubReader
from cmdlog.node.scrub.scrubber import FIRST_AFTER_S, RETRY_S, Scrubber
from cmdlog.node.settings import Settings
from cmdlog.wal.files import RealFiles
from tests.node.test_log_comparison import A, B, FakePeers

DAY_S = 86_400.0
START = 1e9
RATE = 1 << 20
SIZE = 5 << 19  # of a file: two slices and a half


class FakeReader(ScrubReader):
    """Files of `SIZE` bytes; `bad` ones end in damage, `gone` ones are not there any more."""

    def __init__(self) -> None:
        super().__init__("")
        self.orders: list[SliceOrder] = []
        self.bad: set[str] = set()
        self.gone: set[str] = set()
        self.broken = False
        self.rests = 0
        self.sums: dict[str, list[tuple[int, int, int | None]]] = {}

    def read(self, order: SliceOrder) -> Scanned:
        if self.broken:
            raise ReadingFailed("no process")
        self.orders.append(order)
        if order.path in self.gone:
            return Scanned(0, gone=True)
        done = (order.at or {"offset": 0})["offset"] + min(order.bytes_max, SIZE)
        if done < SIZE:
            return Scanned(order.bytes_max, {"offset": done})
        damage = Damage("bad", order.path, 17) if order.path in self.bad else None
        return Scanned(order.bytes_max - (done - SIZE), damage=damage, sums=self.sums.get(order.path, []))

    def rest(self) -> None:
        self.rests += 1


class Rig:
    """A scrub of three files."""

    def __init__(self, folder: Path, *, peers: FakePeers | None = None, every_s: float = DAY_S) -> None:
        self.folder, self.peers, self.every_s = folder, peers, every_s
        self.names = ["a", "b", "c"]
        self.reader = FakeReader()
        self.scrub = self.open(START)

    def open(self, now: float) -> Scrubber:
        hooks = RepairHooks(
            RealFiles(), str(self.folder), range(1), fresh_snapshots=lambda _p, _a: Future(),
            set_aside_archived=lambda _moves: None, mend_segment=lambda _path: False, in_use=lambda _found: True,
            peers=self.peers,
        )  # fmt: skip
        plan = SimpleNamespace(list_items=self.items, is_still_there=lambda item: item.name in self.names)
        settings = Settings(scrub_bytes_per_s=RATE, scrub_every_s=self.every_s)
        self.scrub = Scrubber(
            cast(ScrubPlan, plan), settings, str(self.folder), reader=self.reader, repair=hooks, work=RunningWork(), now=now
        )
        return self.scrub

    def items(self) -> Sequence[ScrubItem]:
        return [ScrubItem("log", name, f"/log/{name}", SIZE) for name in self.names]

    def run_until(self, now: float, *, end: float) -> float:
        """Steps at the times that the scrub asks for; the time after the last one."""
        while now < end:
            now += self.scrub.step(now)
        return now


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Of a node alone."""
    return Rig(tmp_path)


def status(rig: Rig) -> dict[str, Any]:
    """What the node shows."""
    return rig.scrub.status()


def test_the_first_pass_begins_after_the_start_and_the_next_a_day_later(rig: Rig) -> None:
    """Counted from begin to begin; nothing is read in between, and the reader rests."""
    rig.run_until(START, end=START + FIRST_AFTER_S - 1)
    assert rig.reader.orders == []
    rig.run_until(START, end=START + DAY_S / 2)
    assert (status(rig)["passes"], rig.reader.rests) == (1, 1)
    assert status(rig)["last"]["began"] == START + FIRST_AFTER_S
    rig.run_until(START + DAY_S / 2, end=START + DAY_S)
    assert status(rig)["passes"] == 1
    rig.run_until(START + DAY_S, end=START + FIRST_AFTER_S + DAY_S + 60)
    assert status(rig)["passes"] == 2


def test_a_pass_keeps_its_rate(rig: Rig) -> None:
    """Three files of 2.5 MiB at 1 MiB/s take 7.5 seconds, no order reads more than one MiB, and each byte is read once."""
    now = START + FIRST_AFTER_S
    began = now
    while status(rig)["passes"] == 0:
        now += rig.scrub.step(now)
    assert now - began == pytest.approx(7.5, abs=0.2)
    assert max(order.bytes_max for order in rig.reader.orders) == RATE
    assert status(rig)["last"]["bytes"] == 3 * SIZE
    assert [order.path for order in rig.reader.orders] == ["/log/a"] * 3 + ["/log/b"] * 3 + ["/log/c"] * 3


def test_a_restart_continues_within_a_file(rig: Rig) -> None:
    """After an orderly stop at the very slice; the rest of the pass is read, not all of it."""
    now = START + FIRST_AFTER_S
    for _ in range(4):
        rig.scrub.step(now)
    rig.scrub.stop()
    assert rig.reader.orders[-1].path == "/log/b"
    rig.reader.orders.clear()
    rig.open(now)
    rig.run_until(now, end=now + DAY_S / 2)
    assert [(order.path, order.at) for order in rig.reader.orders][:2] == [
        ("/log/b", {"offset": RATE}),
        ("/log/b", {"offset": 2 * RATE}),
    ]
    assert len(rig.reader.orders) == 5
    assert status(rig)["last"]["began"] == START + FIRST_AFTER_S


def test_files_that_leave_while_a_pass_reads_are_passed_over(rig: Rig) -> None:
    """The ring recycles: no finding. One that is gone but has its name is damaged."""
    rig.reader.gone = {"/log/a", "/log/b"}
    now = START + FIRST_AFTER_S
    rig.scrub.step(now)
    assert [found["what"] for found in status(rig)["findings"]] == ["a file of it is missing"]
    rig.names = ["c"]
    rig.run_until(now, end=now + 60)
    assert len(status(rig)["findings"]) == 1
    assert status(rig)["last"]["files"] == 1


def test_a_finding_is_logged_once_and_ends_when_the_file_reads_well(rig: Rig) -> None:
    """A later pass that finds the same says nothing new."""
    rig.reader.bad = {"/log/b"}
    now = rig.run_until(START, end=START + 2 * DAY_S)
    (found,) = status(rig)["findings"]
    assert (found["path"], found["offset"], status(rig)["passes"]) == ("/log/b", 17, 2)
    rig.reader.bad = set()
    rig.run_until(now, end=now + DAY_S)
    assert (status(rig)["findings"], status(rig)["repaired"][0]["repair"]) == ([], "it reads well again")


def test_a_reader_that_fails_is_tried_again(rig: Rig) -> None:
    """The place is kept, and the reason shown until it works."""
    rig.reader.broken = True
    now = START + FIRST_AFTER_S
    assert rig.scrub.step(now) == RETRY_S
    assert status(rig)["problem"] == "no process"
    rig.reader.broken = False
    rig.scrub.step(now)
    assert status(rig)["problem"] is None


def test_a_clock_that_is_set_back_does_not_delay_a_pass(rig: Rig) -> None:
    """A last pass in the future counts as none."""
    rig.run_until(START, end=START + 120)
    rig.open(START - 10 * DAY_S)
    rig.run_until(START - 10 * DAY_S, end=START - 10 * DAY_S + 120)
    assert status(rig)["passes"] == 2


def sums(value: int, *numbers: int) -> dict[str, list[tuple[int, int, int | None]]]:
    """What the reading of the first file gives."""
    return {"/log/a": [(0, number, value) for number in numbers]}


def test_a_member_that_differs_twice_from_the_majority_is_copied(tmp_path: Path) -> None:
    """Once may be entries that were replaced meanwhile: the next pass comes at once. Then it is a finding."""
    peers = FakePeers({2: {0: {3: A}}, 3: {0: {3: A}}})
    peers.commits = {0: 10 * RANGE_ENTRIES}
    rig = Rig(tmp_path, peers=peers)
    rig.reader.sums = sums(B, 3)
    now = START + FIRST_AFTER_S
    while status(rig)["compared"] is None:
        now += rig.scrub.step(now)
    assert (status(rig)["findings"], peers.wanted) == ([], [])
    assert status(rig)["compared"]["differing"] == [
        {"group": 0, "indexes": [3 * RANGE_ENTRIES, 4 * RANGE_ENTRIES - 1], "nodes": [1]}
    ]
    now = rig.run_until(now, end=now + 60)
    (found,) = status(rig)["findings"]
    assert (found["partition"], found["index"]) == (0, 3 * RANGE_ENTRIES)
    assert len(peers.wanted) >= 1
    assert status(rig)["passes"] == 2
    rig.reader.sums = sums(A, 3)
    rig.run_until(now, end=now + 2 * DAY_S)
    assert status(rig)["findings"] == []


def test_ranges_that_were_not_committed_when_the_pass_began_are_not_compared(tmp_path: Path) -> None:
    """They may still be replaced; a sum that is withdrawn is forgotten."""
    peers = FakePeers({2: {0: {3: A, 4: A}}, 3: {0: {3: A, 4: A}}})
    peers.commits = {0: 4 * RANGE_ENTRIES}
    rig = Rig(tmp_path, peers=peers)
    rig.reader.sums = sums(B, 4)
    rig.run_until(START, end=START + 200)
    assert status(rig)["compared"]["differing"] == []
    assert rig.scrub.known_sums(SumsRequest(0, 0, 9, RANGE_ENTRIES)) == {}


def test_sums_are_known_to_peers_also_after_a_restart(tmp_path: Path) -> None:
    """A node that has just started answers with what its last pass read."""
    peers = FakePeers({})
    peers.commits = {0: 10 * RANGE_ENTRIES}
    rig = Rig(tmp_path, peers=peers)
    rig.reader.sums = sums(A, 3, 4)
    rig.run_until(START, end=START + 200)
    again = rig.open(START + 200)
    assert again.known_sums(SumsRequest(0, 4, 9, RANGE_ENTRIES)) == {4: A}
    assert again.known_sums(SumsRequest(9, 0, 9, RANGE_ENTRIES)) == {}
    assert again.known_sums(SumsRequest(0, 0, 9, 2 * RANGE_ENTRIES)) == {}


def test_a_difference_of_others_is_reported_and_nothing_is_done(tmp_path: Path) -> None:
    """The node that differs finds it itself."""
    peers = FakePeers({2: {0: {3: B}}, 3: {0: {3: A}}})
    peers.commits = {0: 10 * RANGE_ENTRIES}
    rig = Rig(tmp_path, peers=peers)
    rig.reader.sums = sums(A, 3)
    rig.run_until(START, end=START + 3 * DAY_S)
    assert status(rig)["compared"]["differing"][0]["nodes"] == [2]
    assert (status(rig)["findings"], peers.wanted) == ([], [])
