"""This node's peers, as the roll says: whom it calls, and from which life of their disks it takes messages.

One rule: the book of peers is written in a thread of its own, since the disk may be slow and the roll changes under the driver's
lock. From the moment that another life of a node is committed until it is in the book, nothing of that node is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_transport import Address
from cmdlog.member.member_roll import MemberRoll
from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.errors import DiskFull
from cmdlog.wal.format.cluster_record import MemberStage

RETRY_S: Final = 1.0  # until a book is written again that found no room
_ABSENT = frozenset({MemberStage.EXPECTED, MemberStage.REMOVED})

log = structlog.get_logger("cmdlog.cluster")


class Calls(Protocol):
    """`PeerNetwork`, as far as it is used here."""

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None: ...


class RollFollower:
    """Any thread."""

    def __init__(
        self,
        roll: MemberRoll,
        book: PeerBook,
        network: Calls,
        *,
        forget: Callable[[int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Pins what the roll names, blocking. `forget`: what a node has acknowledged counts no more; under the driver's lock.
        `failed` gets the error after which this node cannot hear its peers any more. Raises: DiskFull, WriteFailed, Wedged."""
        self._roll, self._book, self._network, self._forget, self._failed = roll, book, network, forget, failed
        self._me = int(book.me.node)
        self._wanted: dict[int, bytes] = {}
        self._unheard: frozenset[int] = frozenset()  # nodes whose new life is not in the book yet
        self._changed = threading.Condition()
        self._again = self._over = False
        self._thread = threading.Thread(target=self._run, name="cmdlog-roll", daemon=True)
        self._note_roll()
        self._follow()
        roll.watch(self.note_change)

    def start(self) -> None:
        """Follows the roll from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def hears(self, peer: int) -> bool:
        """Whether messages of this peer are taken; under the driver's lock."""
        return peer not in self._unheard

    def pinned(self) -> dict[int, bytes]:
        """Node -> incarnation from which messages are taken; under the driver's lock."""
        return {int(node): of.incarnation for node, of in self._book.records.items() if node not in self._unheard}

    def note_change(self) -> None:
        """The roll has changed; under the driver's lock."""
        self._note_roll()
        with self._changed:
            self._again = True
            self._changed.notify()

    def _note_roll(self) -> None:
        wanted = {
            node: of.incarnation for node, of in sorted(self._roll.stated.items())
            if of.incarnation and of.stage is not MemberStage.REMOVED and node != self._me
        }  # fmt: skip
        with self._changed:
            self._wanted, self._unheard = wanted, self._missing(wanted)
        for node in sorted(self._unheard):
            self._forget(node)

    def _missing(self, wanted: Mapping[int, bytes]) -> frozenset[int]:
        known = {int(node): of.incarnation for node, of in self._book.records.items()}
        return frozenset(node for node, life in wanted.items() if known.get(node) != life)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._again or self._over):
                    self._changed.wait()
                if self._over:
                    return
                self._again = False
            try:
                self._follow()
            except DiskFull as error:  # nothing has changed: it is tried again
                log.error("peer_not_pinned", reason=str(error), remedy=f"make room: {error.hint}")
                with self._changed:
                    self._again = True
                    self._changed.wait(RETRY_S)
            except OperatorError as error:
                log.exception("peer_not_pinned", remedy="the node is stopped: it cannot know whom it hears")
                self._failed(error)
                return

    def _follow(self) -> None:
        wanted, roll = self._wanted, self._roll
        for node in sorted(self._missing(wanted)):
            self._admit(node, wanted[node])
        with self._changed:
            if wanted is self._wanted:
                self._unheard = self._missing(wanted)
        absent = {node for node, of in roll.stated.items() if of.stage in _ABSENT}
        self._network.set_peers(
            {NodeId(of.node): of.peer for of in roll.members if of.node != self._me and of.node not in absent}
        )

    def _admit(self, node: int, life: bytes) -> None:
        try:
            self._book.admit(NodeId(node), life)
        except ValueError:
            log.exception("peer_life_is_over", node=node, incarnation=life.hex())  # it stays unheard: the book knows a later one
        else:
            log.warning("peer_admitted", node=node, incarnation=life.hex())
