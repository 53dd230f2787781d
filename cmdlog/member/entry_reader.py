"""Entries that consensus no longer has in memory, read from the log for a follower that is far back.

One rule: every question is answered, in a thread of its own: reading may wait for the disk, and the driver must not. An entry is
the one that consensus means when its term is the one that consensus has for its index: others were replaced.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from cmdlog.cluster.entry_records import entry_of
from cmdlog.cluster.replication import Replication
from cmdlog.operator_error import full_text
from cmdlog.raft import RaftCore, RaftError
from cmdlog.raft.messages import Entries
from cmdlog.raft.ready import EntriesWanted
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.ids import BlockNumber, Index, Lsn, Term
from cmdlog.wal.log import Log

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """What is wanted of a group: entries from `wanted.first` on, which lie in `block` or later."""

    group: int
    wanted: EntriesWanted
    terms: Sequence[int]  # of the wanted entries, in order
    block: int | None  # None: it is not known any more


def read_entries(wal: Log, request: EntryRequest) -> Entries | None:
    """As many of them as fit, one at least; None when the log does not hold the first. Raises: WalError, BadRecord."""
    if request.block is None:
        return None
    wanted, found, size = request.wanted, list[tuple[int, int, bytes]](), 0
    for _, record in wal.read(Lsn(BlockNumber(request.block), -1)):
        at = len(found)
        if at == len(request.terms) or (found and size > wanted.bytes_max):
            break
        if record.partition != request.group or not record.is_entry or record.index != wanted.first + at:
            continue
        if record.term == request.terms[at]:
            kind, payload = entry_of(record)
            found.append((record.term, kind, payload))
            size += len(payload)
    if not found:
        return None
    terms, kinds, payloads = zip(*found, strict=True)
    return Entries(Index(wanted.first), [Term(term) for term in terms], bytes(kinds), list(payloads))


class EntryReader:
    """Answers one question after the other."""

    def __init__(self, wal: Log) -> None:
        self._wal = wal
        self._asked: queue.SimpleQueue[EntryRequest | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, driver: Replication) -> None:
        """Answers go to this driver."""
        thread = threading.Thread(target=self._run, args=(driver,), name="cmdlog-entries", daemon=True)
        self._threads.append(thread)
        thread.start()

    def ask(self, request: EntryRequest) -> None:
        """Any thread; does not wait."""
        self._asked.put(request)

    def stop(self) -> None:
        self._asked.put(None)
        for thread in self._threads:  # none of a node that is closed before it speaks with another
            thread.join()

    def _run(self, driver: Replication) -> None:
        while (request := self._asked.get()) is not None:
            try:
                entries = read_entries(self._wal, request)
            except (WalError, BadRecord) as error:
                log.warning("entries_unreadable", group=request.group, first=request.wanted.first, reason=full_text(error))
                entries = None
            with contextlib.suppress(RaftError, KeyError):
                driver.ask(request.group, partial(RaftCore.report_entries, wanted=request.wanted, entries=entries))
