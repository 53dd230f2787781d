"""The loop of a site process."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

import orjson
import pytest

from cmdlog.node.sites.frames import FrameKind, FrameReader, encode_frame
from cmdlog.node.sites.site_executor import Site
from cmdlog.node.sites.site_faults import SiteFault
from cmdlog.node.sites.site_main import SiteProcess, load_alone
from cmdlog.node.sites.site_progress import BUSY, NO_CALL, PARTITION, POSITION, PROGRESS_BYTES, READ
from cmdlog.wal.format.record import Record, RecordKind, encode_json, encode_record
from procedures.code.bundle import capture_bundle
from procedures.errors import BundleError, EnvironmentFault
from snapshot.capture.capture import IDLE_PAUSE_S
from tests.node.deployed import make_version


class Copying:
    """A site with a capture of so many steps under way, and nothing else to do."""

    def __init__(self, steps: int, then: Callable[[], object]) -> None:
        self._left, self._then = steps, then

    gates: ClassVar[dict[int, object]] = {}

    @property
    def captures(self) -> bool:
        return self._left > 0

    @property
    def idle_pause_s(self) -> float | None:
        return IDLE_PAUSE_S if self._left > 0 else None

    def step_captures(self) -> list[tuple[int, int, dict[str, Any]]]:
        self._left -= 1
        if not self._left:
            self._then()
        return []

    def empty_logs(self) -> None:
        pass


def test_idle_site_rests_before_every_step_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits a moment for what it could just look for: a site that never sleeps may keep the log's syncs off a processor."""
    ours, theirs = socket.socketpair()
    process = SiteProcess(theirs, memoryview(bytearray(PROGRESS_BYTES)).cast("Q"))
    process._site = cast(Site, Copying(5, then=lambda: ours.shutdown(socket.SHUT_WR)))
    waits: list[float] = []
    real = select.select

    def watched(*given: Any) -> Any:
        waits.append(given[3])
        return real(*given)

    monkeypatch.setattr(select, "select", watched)
    with ours, theirs:
        process.run()
    assert len(waits) == 5
    assert min(waits) > 0


class Reading:
    """A site with a capture under way that notes what its page says, in each read, each step and each answer."""

    captures = True

    def __init__(self, page: memoryview, fails: EnvironmentFault | None = None) -> None:
        self._page, self._fails = page, fails
        self.seen: list[tuple[str, int, int]] = []  # what it did, busy, number of the read

    def note(self, what: str) -> None:
        self.seen.append((what, self._page[BUSY], self._page[READ]))

    def read(self, partition: int, _call: object) -> tuple[int, list[tuple[int, bytes]]]:
        assert self._page[PARTITION] == partition
        self.note("read")
        if self._fails is not None:
            raise self._fails
        return 70, [(0, b"1")]

    def read_traces(self) -> tuple[()]:
        return ()

    def pace(self, _partition: int, _share: float) -> None:
        self.note("pace")

    def step_captures(self) -> list[tuple[int, int, dict[str, Any]]]:
        self.note("step")
        return []


class Applying:
    """A site that notes which call its page names while an entry is applied."""

    captures = False

    def __init__(self, page: memoryview) -> None:
        self._page = page
        self.named: list[int] = []

    def apply(self, _record: Record, _tick: object) -> None:
        self.named.append(self._page[POSITION])


def test_entry_without_calls_names_none_as_the_one_that_runs() -> None:
    """Whatever ends the site then, no call is to blame, and nothing of the entry may be left out."""
    page = memoryview(bytearray(PROGRESS_BYTES)).cast("Q")
    ours, theirs = socket.socketpair()
    process, site = SiteProcess(theirs, page), Applying(page)
    process._site = cast(Site, site)
    value = {"txn_id": 9, "statements": []}
    schema = encode_json(RecordKind.SCHEMA, value, partition=0, term=1, index=2)
    batch = encode_record(RecordKind.BATCH, b"", partition=0, term=1, index=3)
    with ours, theirs:
        handle(process, *(encode_frame(FrameKind.ENTRY, record, ident=ident) for ident, record in ((2, schema), (3, batch))))
    assert site.named == [NO_CALL, 0]


def handle(process: SiteProcess, *frames: bytes) -> None:
    """Has it do what it was sent."""
    for frame in FrameReader().feed(b"".join(frames)):
        process._handle(frame)


def test_page_has_the_number_of_a_read_only_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while its answer is sent, a capture steps, or another frame is handled: what ends the site there is no read's doing."""
    ours, theirs = socket.socketpair()
    page = memoryview(bytearray(PROGRESS_BYTES)).cast("Q")
    process, site = SiteProcess(theirs, page), Reading(page)
    process._site = cast(Site, site)
    monkeypatch.setattr(process, "_send", lambda kind, *_, **__: site.note(kind.name))
    with ours, theirs:
        read = encode_frame(FrameKind.READ, b"[[4,[],1]]", partition=3, ident=41)
        handle(process, read, encode_frame(FrameKind.PACE, b"0.5", partition=3, ident=9))
    assert site.seen == [("read", 1, 41), ("READ_ANSWER", 1, 0), ("step", 1, 0), ("pace", 1, 0), ("step", 1, 0)]
    assert (page[BUSY], page[READ]) == (0, 0)


def test_site_that_ends_in_a_read_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the machine, such as memory, is said with the number of the read."""
    ours, theirs = socket.socketpair()
    page = memoryview(bytearray(PROGRESS_BYTES)).cast("Q")
    process = SiteProcess(theirs, page)
    fault = EnvironmentFault("memory", txn_id=70, procedure="look", position=0, cause="NoMemError()")
    process._site = cast(Site, Reading(page, fault))

    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    with ours, theirs:
        with pytest.raises(SystemExit):
            handle(process, encode_frame(FrameKind.READ, b"[[4,[],1]]", partition=3, ident=41))
        (frame,) = FrameReader().feed(ours.recv(1 << 16))
    said = SiteFault(**orjson.loads(frame.payload))
    assert (frame.kind, said.kind, said.partition, said.index, said.read) == (FrameKind.FAULT, "memory", 3, 0, 41)


# -- Code is imported as a recovery imports it


def test_code_is_loaded_in_an_empty_folder_without_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the process is where it was, and searches what it searched, and what the code has added."""
    empty, own, added = tmp_path / "empty", tmp_path / "own", "/added by the code"
    monkeypatch.chdir(tmp_path)
    empty.mkdir()
    own.mkdir()
    (own / "only_there.py").touch()
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    look = f"import os, sys\nassert '__file__' in globals() or os.getcwd() == {str(empty)!r}\nsys.path.append({added!r})"
    load_alone(capture_bundle(make_version(tmp_path, 1, tables=look)[0]), [str(own)], str(empty))
    assert (Path.cwd(), sys.path[0]) == (tmp_path, str(own))
    assert added in sys.path
    needs = capture_bundle(make_version(tmp_path, 2, tables="if '__file__' not in globals(): import only_there")[0])
    with pytest.raises(BundleError, match="only_there"):
        load_alone(needs, [str(own)], str(empty))
    assert os.listdir(empty) == []
