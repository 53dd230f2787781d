"""Logs that cannot be of one history, by what they know committed."""

from __future__ import annotations

from replay.log.evidence import GroupEvidence, StatedConfiguration
from replay.plan.contradiction import UNKNOWN_TERM, contradiction_of

FORCED = 1 << 20


def log(commit: int, *configurations: tuple[int, int]) -> GroupEvidence:
    """A log that is committed up to there; configurations by index and term."""
    stated = tuple(StatedConfiguration(index, term, frozenset({1})) for index, term in configurations)
    return GroupEvidence(0, 1, commit, commit, 1, 1, 0, stated)


def test_the_same_entries_are_one_history() -> None:
    """Terms rise along it, whichever log knows them."""
    logs = {"a": log(9, (1, 1), (5, 2)), "b": log(7, (1, 1), (5, 2))}
    places = {"a": {5: (2, 55), 9: (3, 99)}, "b": {5: (2, 0), 7: (2, 77)}}
    assert contradiction_of(logs["a"].configurations[-1], logs, places) == ""
    assert contradiction_of(None, {}, {}) == ""


def test_another_entry_at_one_index_is_another_history() -> None:
    """By its term, or by its checksum where both are known."""
    for theirs in ((4, 99), (3, 98)):
        assert "entry 9" in contradiction_of(None, {}, {"a": {9: (3, 99)}, "b": {9: theirs}})


def test_a_log_that_passed_a_configuration_without_it_is_another_history() -> None:
    """It knows entries beyond it to be committed, and states an older configuration."""
    logs = {"a": log(9, (8, 3)), "b": log(9, (1, 1))}
    assert "without the configuration of term 3 at index 8" in contradiction_of(logs["a"].configurations[0], logs, {})


def test_a_configuration_whose_term_is_not_known_contradicts_nobody() -> None:
    """A copied log states it so: by its index it is the others' all the same, or another one."""
    logs = {"copy": log(9, (5, UNKNOWN_TERM)), "b": log(9, (5, 2))}
    places = {"copy": {9: (3, 99)}, "b": {6: (2, 66)}}
    for known in (logs["copy"].configurations[0], logs["b"].configurations[0]):
        assert contradiction_of(known, logs, places) == ""
        assert "at index 5" in contradiction_of(known, {**logs, "c": log(9, (4, 2))}, places)


def test_two_survivors_that_were_forced_apart_are_two_histories() -> None:
    """Neither knows the other's entries, but the terms cannot be of one log: the one that was forced later drew a lower term."""
    logs = {"a": log(149, (149, 3 * FORCED)), "b": log(160, (150, 2 * FORCED))}
    found = contradiction_of(logs["b"].configurations[0], {"b": logs["b"], "a": log(149, (149, 3 * FORCED))}, {})
    assert f"entry 149 is known to be committed in a with term {3 * FORCED}" in found
    lagging = {"a": log(149, (149, FORCED)), "b": log(160, (150, 2 * FORCED))}
    assert contradiction_of(lagging["b"].configurations[0], lagging, {}) == ""
