"""What a start of a cluster's node does with its directory. The table below is tried from the top; exactly one row holds.

    tombstone   rejoin.json   instance.json   peers             then
    yes         -             -               -                 REFUSE   the cluster has removed this node
    no          yes           -               -                 RESUME   a copy is wanted, or under way
    no          no            yes             -                 OPEN     as it is; damaged, and a peer has begun: COPY
    no          no            no              one has begun     COPY     the disk is new, or was emptied
    no          no            no              none has begun    CREATE   the first start of a new cluster

A tombstone that lies beside `rejoin.json` still refuses: the cluster has said no.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class StartVerdict(enum.Enum):
    """What is done."""

    REFUSE = "refuse"
    RESUME = "resume"
    OPEN = "open"
    COPY = "copy"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What the directory shows."""

    has_tombstone: bool
    has_rejoin: bool
    has_instance: bool


def decide_start(facts: StartFacts, *, has_begun: bool | None = None) -> StartVerdict | None:
    """The row that holds; None: the peers have to be asked first whether one has begun."""
    if facts.has_tombstone:
        return StartVerdict.REFUSE
    if facts.has_rejoin:
        return StartVerdict.RESUME
    if facts.has_instance:
        return StartVerdict.OPEN
    if has_begun is None:
        return None
    return StartVerdict.COPY if has_begun else StartVerdict.CREATE
