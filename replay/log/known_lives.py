"""Which lives of the nodes' disks a directory knows: by the MEMBER entries of its log, and by its book of peers.

One rule: read-only, values only. An emptied or replaced disk comes back as another life (*incarnation*), and what an earlier life
has acknowledged is not on the later one. MEMBER entries state which life counts. The book states it also where no entry does yet:
a node pins each peer's life durably before it takes part in the first election. It also counts the starts of its directory, and
knows the last start of each peer that it has met: a directory that has counted fewer, or whose start of that number was another
process's, is an old copy of what was met.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cmdlog.wal.directory.instance import CLUSTER_FOLDER, Identity
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import decode_checked
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX
from cmdlog.wal.group_state import Stated

BOOK_PATH: Final = (CLUSTER_FOLDER, "peers.json")
PINNED: Final = (0, 0)  # the place of what only the book states


@dataclass(frozen=True, slots=True)
class KnownLife:
    """What a directory knows of one node's disk."""

    incarnation: str  # in hexadecimal; "" while another one is expected
    former: frozenset[str]  # lives that are over, for ever
    place: tuple[int, int]  # term and index of the MEMBER entry, PINNED without one


def lives_of_log(stated: Iterable[Stated]) -> dict[int, KnownLife]:
    """What the newest MEMBER entries state, committed or not. Raises: KeyError, TypeError, ValueError."""
    found = {}
    for of in stated:
        member = ClusterMember.from_json(of.value)
        former = frozenset(incarnation.hex() for incarnation in member.former)
        found[member.node] = KnownLife(member.incarnation.hex(), former, (of.term, of.index))
    return found


@dataclass(frozen=True, slots=True)
class KnownStart:
    """A start of a node's directory, as a book has it."""

    incarnation: str
    number: int
    process: str  # a random number, in hexadecimal; "" where a book of an older version does not say it
    earlier: tuple[str, ...] = field(default=(), compare=False)  # of the starts just before it, oldest first

    def is_older(self, met: KnownStart) -> bool:
        """Whether this last start of a directory shows that another directory of the same life was met.

        An old copy that was started again may have counted further than what was met: then the start of that number was another
        process's.
        """
        if self.incarnation != met.incarnation:
            return False
        back = self.number - met.number
        starts = (*self.earlier, self.process)
        return back < 0 or (back < len(starts) and starts[-1 - back] not in ("", met.process))


@dataclass(frozen=True, slots=True)
class PeersMet:
    """What a book of peers says."""

    lives: Mapping[int, KnownLife] = field(default_factory=dict)  # of the peers
    confirmed: frozenset[int] = frozenset()  # peers that have pinned the life of this directory
    start: KnownStart | None = None  # the last one of this directory, counted before anybody hears of it; None: unknown
    peers: Mapping[int, KnownStart] = field(default_factory=dict)  # the last start of each that was met


def peers_met(files: Files, directory: str, identity: Identity) -> PeersMet:
    """What the book of peers says; nothing where there is none, or none that can be relied on."""
    path = os.path.join(directory, *BOOK_PATH)
    if not files.exists(path):
        return PeersMet()
    try:
        value = decode_checked(files.read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
        # A book that is damaged, or of another node or life, states nothing.
        if (value["node_id"], value["incarnation"]) != (identity.node_id, identity.incarnation.hex()):
            return PeersMet()
        records = {int(node): of for node, of in value["peers"].items()}
        lives = {node: KnownLife(str(of["incarnation"]), frozenset(of["former"]), PINNED) for node, of in records.items()}
        confirmed = frozenset(node for node, of in records.items() if of["confirmed"])
        earlier = tuple(str(process) for process in value.get("earlier", ()))
        start = KnownStart(str(value["incarnation"]), int(value["starts"]), str(value.get("process", "")), earlier)
        peers = {
            node: KnownStart(str(of["incarnation"]), int(of["start"][0]), str(of["start"][1]))
            for node, of in records.items()
            if of["start"] is not None
        }
        return PeersMet(lives, confirmed, start, peers)
    except (AttributeError, KeyError, TypeError, ValueError):
        return PeersMet()


def known_lives(log: Mapping[int, KnownLife], book: Mapping[int, KnownLife]) -> dict[int, KnownLife]:
    """Both together: the log's word counts, and what either calls over is over."""
    found = dict(book)
    for node, life in log.items():
        pinned = book.get(node)
        former = life.former | (pinned.former if pinned is not None else frozenset())
        found[node] = KnownLife(life.incarnation, former, life.place)
    return dict(sorted(found.items()))
