"""Whether logs that know entries of a group to be committed can be of one history.

One rule: pure, and by what is known committed alone: such an entry is in every leader's log for ever (Raft paper, section 5.4).
So two logs that know another one at the same index have parted, and so have logs of which one knows an earlier term at a later
index: terms never fall along a log. That is how two survivors are found of which each was forced to continue alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Final

from replay.log.evidence import BOOTSTRAP_INDEX, GroupEvidence, StatedConfiguration

UNKNOWN_TERM: Final = 0  # of a configuration in a copied log, whose source no longer held the entry
Places = Mapping[str, Mapping[int, tuple[int, int]]]
"""directory -> index -> (term, checksum) of entries that are known committed"""


def contradiction_of(known: StatedConfiguration | None, logs: Mapping[str, GroupEvidence], places: Places) -> str:
    """What two logs contradict each other in; "" when they do not. `known`: the newest configuration that is known committed."""
    return (_denial(known, logs) if known is not None else "") or _other_entry(places) or _falling_term(logs, places)


def is_committed(configuration: StatedConfiguration, log: GroupEvidence) -> bool:
    """As that log knows it. What a group is made with was never put to the vote."""
    return configuration.index <= max(log.commit, BOOTSTRAP_INDEX)


def _denial(known: StatedConfiguration, logs: Mapping[str, GroupEvidence]) -> str:
    """Which log knows another entry to be committed at the index of the newest committed configuration."""
    for directory, log in logs.items():
        stated = [(c.index, c.term) for c in log.configurations if is_committed(c, log) and not log.unseen]
        if stated and known.index <= log.commit and not _is_stated_at(known, *stated[-1]):
            return (
                f"{directory} knows entries up to {log.commit} to be committed, without the configuration of term "
                f"{known.term} at index {known.index} that is committed in another log"
            )
    return ""


def _is_stated_at(known: StatedConfiguration, index: int, term: int) -> bool:
    return index == known.index and (term == known.term or UNKNOWN_TERM in (term, known.term))


def _other_entry(places: Places) -> str:
    for (one, mine), (other, theirs) in combinations(sorted(places.items()), 2):
        for index in sorted(set(mine) & set(theirs)):
            if _differ(mine[index], theirs[index]):
                return (
                    f"entry {index} is known to be committed in {one} with term {mine[index][0]} and checksum "
                    f"{mine[index][1]:08x}, in {other} with term {theirs[index][0]} and checksum {theirs[index][1]:08x}"
                )
    return ""


def _falling_term(logs: Mapping[str, GroupEvidence], places: Places) -> str:
    known = [(index, term, directory) for directory, of in places.items() for index, (term, _) in of.items()]
    stated = [(c, name) for name, log in logs.items() for c in log.configurations if is_committed(c, log)]
    known += [(c.index, c.term, name) for c, name in stated if c.term != UNKNOWN_TERM]
    for (index, term, directory), (later, later_term, other) in pairwise(sorted(known)):
        if later_term < term and index < later:
            return (
                f"entry {index} is known to be committed in {directory} with term {term}, and entry {later} in {other} with the "
                f"earlier term {later_term}"
            )
    return ""


def _differ(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] != other[0] or (one[1] != other[1] and bool(one[1] and other[1]))
