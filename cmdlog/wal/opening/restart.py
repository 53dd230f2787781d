"""The restart table: what can be found at start, and what it means. The heart of recovery.

One rule: a pure function of what was read. `survey.py` reads, this file judges, `repair.py` acts; exactly one row matches.

A torn tail differs from damage by *evidence*: the highest block that anything readable knew to be durable. A bad block that
evidence covers had been acknowledged and has changed since: corrupt. One that no evidence covers was never acknowledged by this
log's rules: it may be cut. Length and checksum alone cannot separate the two (FORMAT.md "Evidence").

Good blocks beyond the evidence may exist in the page cache alone, since a failed or missing sync leaves them there: they are
written again in place and synced before they count (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Final

from cmdlog.wal.opening.scan import EndKind, SegmentWalk


class RestartVerdict(enum.Enum):
    """The rows' names."""

    NEWER = "newer"
    FOREIGN = "foreign"
    MISSING = "missing"
    DAMAGED_HEAD = "damaged head"
    CORRUPT = "corrupt"
    MISPLACED = "misplaced"
    STALE = "stale"
    TORN = "torn"
    UNSEALED = "unsealed"
    CLEAN = "clean"


class Action(enum.Enum):
    """What follows from a row. Every one may be interrupted by a crash and is then done again from its start."""

    REFUSE = "raise, and leave the directory untouched"
    CUT = "rewrite the unproved blocks, keep the rest aside, zero it, seal"
    REWRITE = "write the unproved blocks again, sync, seal"
    GO_ON = "nothing to decide"


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found, one yes or no each, in the order in which they settle the matter."""

    newer: bool  # a file or block of a newer format
    foreign: bool  # ids, names and headers disagree
    missing: bool  # a segment is not there, or is not the one that its neighbour followed
    damaged_head: bool  # a segment's header, checkpoint or length is bad
    acknowledged: bool  # evidence covers the block that does not stand at the end of the chain
    misplaced: bool  # a good block of this life is where another belongs
    stale: bool  # a good block of an earlier opening is at the end
    remains: bool  # bytes of this life are at the end or after it
    unproved: bool  # the last block with records is beyond the evidence


@dataclass(frozen=True, slots=True)
class RestartRow:
    """`yes` is the fact that decides; all facts before it in Facts are no, later ones do not matter."""

    verdict: RestartVerdict
    yes: str
    action: Action
    story: str


TABLE: Final = (
    RestartRow(
        RestartVerdict.NEWER,
        "newer",
        Action.REFUSE,
        "A newer program has written here. Its bytes may mean anything, so nothing is concluded from them.",
    ),
    RestartRow(
        RestartVerdict.FOREIGN,
        "foreign",
        Action.REFUSE,
        "A file was copied in, renamed or swapped with another node's. Names, headers and instance file each say who they are.",
    ),
    RestartRow(
        RestartVerdict.MISSING,
        "missing",
        Action.REFUSE,
        "Segments are recycled oldest first, after the hard state file says so, and follow each other by generation: "
        "a gap, or an end other than the noted one, is a lost file.",
    ),
    RestartRow(
        RestartVerdict.DAMAGED_HEAD,
        "damaged_head",
        Action.REFUSE,
        "A file gets its name after its header and checkpoint are durable and has its full length then. No crash leaves less.",
    ),
    RestartRow(
        RestartVerdict.CORRUPT,
        "acknowledged",
        Action.REFUSE,
        "A block that something later knew to be durable cannot be read. It had been acknowledged. Cutting here would lose it.",
    ),
    RestartRow(
        RestartVerdict.MISPLACED,
        "misplaced",
        Action.REFUSE,
        "An intact block of this life lies at another block's place: a write was misdirected or lost. "
        "A crash cannot do that, since the rest of a cut segment is zeros before the next append.",
    ),
    RestartRow(
        RestartVerdict.STALE,
        "stale",
        Action.CUT,
        "An earlier opening wrote this block, it was cut, and the zeros over it did not last. "
        "Its opening count is lower than that of the block before it, so it is no successor.",
    ),
    RestartRow(
        RestartVerdict.TORN,
        "remains",
        Action.CUT,
        "The last writes were under way when the power went or the process died. Nothing proves that they were acknowledged.",
    ),
    RestartRow(
        RestartVerdict.UNSEALED,
        "unproved",
        Action.REWRITE,
        "The chain ends well, but nothing written later vouches for its last blocks: they may be only in the page cache.",
    ),
    RestartRow(
        RestartVerdict.CLEAN,
        "",
        Action.GO_ON,
        "A seal, a checkpoint or the hard state file vouches for the last block with records.",
    ),
)


def decide(facts: Facts) -> RestartRow:
    """The one row that matches."""
    matching = [row for row in TABLE if _matches(row, facts)]
    assert len(matching) == 1, f"{len(matching)} rows match {facts}"
    return matching[0]


def tail_facts(walk: SegmentWalk, *, evidence: int) -> Facts:
    """The facts of the newest segment; `evidence` is what the other files knew."""
    known = max(evidence, walk.evidence)
    return Facts(
        newer=walk.end_kind is EndKind.NEWER,
        foreign=False,
        missing=False,
        damaged_head=not walk.places,
        acknowledged=known >= walk.expected,
        misplaced=walk.end_kind is EndKind.MISPLACED,
        stale=walk.end_kind is EndKind.STALE,
        remains=walk.end_kind is EndKind.BAD or bool(walk.later),
        unproved=walk.last_with_records > known,
    )


def _matches(row: RestartRow, facts: Facts) -> bool:
    for name in FACT_NAMES:
        value = getattr(facts, name)
        if name == row.yes:
            return bool(value)
        if value:
            return False
    return row.yes == ""


FACT_NAMES: Final = tuple(field.name for field in fields(Facts))
