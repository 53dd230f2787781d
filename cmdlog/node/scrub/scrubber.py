"""The scrub: log, snapshots and archive of the running node are read again and again, slowly, so that damage is found while there
is still something to repair it from. (A disk loses sectors that nobody reads: Bairavasundaram et al., "An Analysis of Latent
Sector Errors in Disk Drives", SIGMETRICS 2007.)

One rule: `step` does one small thing and says how long to wait; clock, reader and node are arguments. A pass reads every file
once, `scrub_bytes_per_s` at most; it continues where it was, also after a restart (`scrub_progress`). The next one
begins `scrub_every_s` after this one began. A member then compares its log with its peers' (`cmdlog.node.scrub.log_comparison`).

State files are not read here: SQLite writes them all the time. They are checked after a kill (`page_checks`), and the batches'
digests compare what they hold with the leader's.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.scrub.damage_repair import DamageRepair, RepairHooks
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES, range_end
from cmdlog.node.scrub.file_scan import Damage, Scanned, SliceOrder
from cmdlog.node.scrub.scrub_plan import ScrubItem, ScrubPlan, items_left, last_names
from cmdlog.node.scrub.scrub_progress import Findings, ScrubFinding, ScrubPass, read_progress
from cmdlog.node.scrub.scrub_reader import ReadingFailed, ScrubReader
from cmdlog.node.settings import Settings

if TYPE_CHECKING:
    from cmdlog.cluster.copying.log_sums import SumsRequest
    from cmdlog.node.scrub.log_comparison import LogComparison, ScrubPeers, SumVerdict

SLICE_BYTES: Final = 1 << 20  # read with one order
FIRST_AFTER_S: Final = 60.0  # after a start: others are busy then
LOOK_S: Final = 1.0  # at repairs under way
IDLE_S: Final = 60.0  # between two looks whether a pass is due
ASK_S: Final = 0.05  # between two questions to peers
SAVE_EVERY_S: Final = 30.0  # so much of a pass a kill may cost
RETRY_S: Final = 60.0
RANGES_KEPT: Final = 4096  # sums of each group: 4 M entries

log = structlog.get_logger("cmdlog.scrub")


class Scrubber:
    """`step` and `stop` belong to one thread, or to `start`; `status` and `known_sums` may be called from any."""

    def __init__(
        self,
        plan: ScrubPlan,
        settings: Settings,
        folder: str,
        *,
        reader: ScrubReader,
        repair: RepairHooks,
        work: RunningWork,
        now: float,
    ) -> None:
        """`folder`: where its progress is kept."""
        self._plan, self._folder, self.reader, self._work, self._now = plan, folder, reader, work, now
        self._bytes_per_s, self._every_s = settings.scrub_bytes_per_s, settings.scrub_every_s
        self._directory, self._peers = repair.directory, repair.peers
        self._progress = read_progress(folder)
        self._findings = Findings(self._progress.findings)
        self._repair = DamageRepair(repair, self._findings)
        self._items: deque[ScrubItem] | None = None  # what is left of the pass; None: not listed since the start
        self._left_bytes = 0
        self._committed: dict[int, int] = {}  # group -> last entry known to be committed when the pass began
        self._comparison: LogComparison | None = None
        self._compared: dict[str, Any] | None = None
        self._suspected: set[tuple[int, int]] = set()  # ranges that differed from the majority at the last comparison
        self._saved_at, self._first_at = now, now + FIRST_AFTER_S
        self._again_at: float | None = None  # a pass that is wanted sooner than usual
        self._problem = ""
        self.read_bytes = 0  # since the start
        self.damage_found = Counter[str]()  # kind -> how often, since the start
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)

    # -- the node's side -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._every_s:
            self._thread.start()

    def stop(self) -> None:
        """Interrupts what is under way; the next start continues there."""
        self._stopping.set()
        self.reader.stop()
        if self._thread.is_alive():
            self._thread.join()
        self.reader.rest()
        if self._progress.under_way is not None:
            self._save()

    def known_sums(self, asked: SumsRequest) -> dict[int, int]:
        """For a peer that compares: range -> sum, of those that this node has read."""
        known = self._progress.sums.get(str(asked.group), {}) if asked.stride == RANGE_ENTRIES else {}
        return {number: known[str(number)] for number in range(asked.first, asked.last + 1) if str(number) in known}

    def status(self) -> dict[str, Any]:
        """every_s, bytes_per_s; pass: the one under way; last: the one before; findings, repaired, compared, problem."""
        now = self._progress.under_way
        total = 0 if now is None else now.bytes + self._left_bytes
        under_way = None if now is None else {
            "began": now.began,
            "bytes": now.bytes,
            "percent": round(100 * now.bytes / total, 1) if total else 0.0,
            "files": now.files,
            "reading": "" if now.current is None else now.current[1],
        }  # fmt: skip
        return {
            "every_s": self._every_s,
            "bytes_per_s": self._bytes_per_s,
            "passes": self._progress.passes,
            "pass": under_way,
            "last": self._progress.last,
            "findings": [found.shown() for found in self._findings.open],
            "repaired": [found.shown() for found in self._findings.ended],
            "compared": self._compared,
            "problem": self._problem or None,
        }

    def age_s(self, now: float) -> float | None:
        """Seconds since the last whole pass ended; None when none did. Any thread."""
        last = self._progress.last
        return None if last is None else max(0.0, now - float(last["finished"]))

    def open_findings(self) -> Counter[str]:
        """How many of each kind are not over. Any thread."""
        return Counter(found.kind for found in self._findings.open)

    # -- a step ----------------------------------------------------------------------------------------------------------

    def step(self, now: float) -> float:
        """Does one thing at time `now`, in seconds since 1970; seconds until the next."""
        self._now = now
        if self._repair.advance(now):
            self._save()
        if self._comparison is not None:
            return self._compare(self._comparison)
        if self._progress.under_way is None and now < self.due_at:
            return min(LOOK_S if self._findings.open else IDLE_S, self.due_at - now)
        return self._read_on()

    @property
    def due_at(self) -> float:
        """When the next pass begins, or this one continues."""
        began = self._progress.last_began
        if self._again_at is not None:
            return self._again_at
        if began is None or began > self._now:  # the clock was set back
            return self._first_at
        return max(self._first_at, began + self._every_s)

    def _read_on(self) -> float:
        under_way = self._progress.under_way or self._begin_pass()
        if self._items is None:
            self._list_items(under_way)
        assert self._items is not None
        if not self._items:
            self._finish()
            return ASK_S
        item = self._items[0]
        order = self._order_for(item, under_way)
        try:
            scanned = self.reader.read(order)
        except ReadingFailed as error:
            self._note_problem(str(error))
            return RETRY_S
        self._problem = ""
        self._take_sums(scanned.sums)
        self._take_slice(item, scanned, under_way)
        if self._now - self._saved_at >= SAVE_EVERY_S:
            self._save()
        return scanned.bytes / self._bytes_per_s

    def _begin_pass(self) -> ScrubPass:
        items = self._plan.list_items()
        under_way = self._progress.begin_pass(self._now, last_names(items))
        self._items, self._again_at = None, None
        log.info("scrub_began", files=len(items), bytes=sum(item.bytes for item in items))
        return under_way

    def _list_items(self, under_way: ScrubPass) -> None:
        peers = self._peers
        self._committed = {} if peers is None else dict(peers.committed())  # before it is read how far the log is
        items = items_left(self._plan.list_items(), after=under_way.after, upto=under_way.upto)
        self._items, self._left_bytes = deque(items), sum(item.bytes for item in items)

    def _order_for(self, item: ScrubItem, under_way: ScrubPass) -> SliceOrder:
        under_way.begin_file(item.key)
        return SliceOrder(
            item.kind,
            item.path,
            min(SLICE_BYTES, self._bytes_per_s),
            at=under_way.at,
            last_block=item.last_block,
            generation=item.generation,
            sums=self._peers is not None,
        )

    def _take_slice(self, item: ScrubItem, scanned: Scanned, under_way: ScrubPass) -> None:
        under_way.note_slice(scanned.bytes, scanned.at)
        self.read_bytes += scanned.bytes
        self._left_bytes = max(0, self._left_bytes - scanned.bytes)
        if scanned.at is not None:
            return
        whole = damaged = 0
        if not scanned.gone and scanned.damage is None:
            whole = 1
            if (over := self._findings.end(item.key, self._now, "it reads well again")) is not None:
                log.info("damage_repaired", kind=item.kind, path=over.path, repair=over.repair)
        elif self._plan.is_still_there(item):
            damaged = 1
            self._report(item, scanned.damage or Damage("a file of it is missing", item.path))
        assert self._items is not None
        self._items.popleft()
        under_way.end_file(item.key, whole=whole, damaged=damaged)

    def _report(self, item: ScrubItem, damage: Damage) -> None:
        found = ScrubFinding.of(item, damage, self._now)
        known = self._findings.find(item.key)
        if known is not None and (known.what, known.path, known.offset) == (found.what, found.path, found.offset):
            return
        txn = None if found.txn_id is None else str(found.txn_id)
        log.error(
            "damage_found", kind=found.kind, path=found.path, offset=found.offset, block=found.block,
            partition=found.partition, index=found.index, txn_id=txn, reason=found.what,
        )  # fmt: skip
        self.damage_found[found.kind] += 1
        self._repair.begin_repair(found)
        self._save()

    def _finish(self) -> None:
        self.reader.rest()
        last, self._items = self._progress.end_pass(self._now), None
        log.info("scrub_finished", **{name: last[name] for name in ("bytes", "files", "damaged")})
        peers = self._peers
        if peers is not None:
            self._begin_comparison(peers)
        self._save()

    # -- sums of the log ---------------------------------------------------------------------------------------------------

    def _take_sums(self, changes: Sequence[tuple[int, int, int | None]]) -> None:
        """Of ranges that were committed before the pass began; others may still be replaced."""
        if not changes:
            return
        sums = {group: dict(known) for group, known in self._progress.sums.items()}
        for group, number, value in changes:
            known = sums.setdefault(str(group), {})
            known.pop(str(number), None)
            if value is not None and range_end(number) <= self._committed.get(group, 0):
                known[str(number)] = value
            for old in sorted(known, key=int)[:-RANGES_KEPT]:
                del known[old]
        self._progress.take_sums(sums)

    def _begin_comparison(self, peers: ScrubPeers) -> None:
        mine = {int(group): {int(n): value for n, value in known.items()} for group, known in self._progress.sums.items()}
        self._comparison = peers.compare(mine)

    def _compare(self, comparison: LogComparison) -> float:
        """One question, or the verdict."""
        if comparison.ask_next():
            return ASK_S
        self._comparison = None
        verdicts = comparison.verdicts()
        self._compared = {
            "at": self._now,
            "nodes": comparison.answered,
            "ranges": comparison.ranges,
            "differing": [{"group": v.group, "indexes": list(v.indexes), "nodes": list(v.differs)} for v in verdicts],
        }
        for verdict in verdicts:
            log.error("logs_differ", group=verdict.group, indexes=verdict.indexes, nodes=list(verdict.differs) or "no majority")
        self._judge_own([v for v in verdicts if comparison.node in v.differs])
        self._save()
        return LOOK_S

    def _judge_own(self, verdicts: Sequence[SumVerdict]) -> None:
        """What differs here twice is a finding: the first time, entries may have been read that were replaced meanwhile."""
        before, self._suspected = self._suspected, {(v.group, v.range) for v in verdicts}
        self._again_at = self._now + LOOK_S if self._suspected - before else None
        names = set()
        for v in verdicts:
            first, last = v.indexes
            item = ScrubItem("entries", f"group-{v.group}-from-{first}", os.path.join(self._directory, "log"), 0)
            names.add(item.name)
            if (v.group, v.range) in before and self._findings.find(item.key) is None:
                what = f"entries {first} to {last} differ from those of the majority"
                damage = Damage(what, item.path, partition=v.group, index=first)
                log.error("damage_found", kind=item.kind, path=item.path, partition=v.group, index=first, reason=what)
                self.damage_found[item.kind] += 1
                self._repair.begin_repair(ScrubFinding.of(item, damage, self._now))
        for found in list(self._findings.open):
            if found.kind == "entries" and found.name not in names:
                self._findings.end(found.key, self._now, "the entries are those of the majority")

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _note_problem(self, problem: str) -> None:
        if self._stopping.is_set():
            return
        if problem != self._problem:
            log.warning("scrub_interrupted", reason=problem)
        self._problem = problem

    def _save(self) -> None:
        self._saved_at = self._now
        self._progress.save(self._folder, self._findings.as_values())

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            try:
                with self._work.track("scrub", "scrub"):
                    wait_s = self.step(time.time())
            except Exception as error:  # our own bug: the node serves all the same
                log.exception("scrub_interrupted")
                self._problem, wait_s = f"{type(error).__name__}: {error}", RETRY_S
