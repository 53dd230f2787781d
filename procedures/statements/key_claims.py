"""What follows from conditions: which columns are equal to which, and which values they may have. No SQL here.

`RowFacts` say what holds for every row. `claims_of` puts them together: a column has one of the values of each of its claims.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CHOICES_MAX: Final = 16  # claims of an OR; each of its sides may have several


@dataclass(frozen=True, slots=True)
class Value:
    """A bound parameter, or a constant of the text."""

    name: str | None
    constant: Any = None


Node = tuple[int, str]  # a column of one occurrence of a table
Term = Node | Value
Claim = tuple[Value, ...]  # a column has one of these values


@dataclass(slots=True)
class RowFacts:
    """What holds for every row: pairs that are equal, columns that have one of several values, and one of each choice."""

    equal: list[tuple[Term, Term]] = field(default_factory=list)
    among: list[tuple[Node, Claim]] = field(default_factory=list)
    choices: list[list[RowFacts]] = field(default_factory=list)

    def add(self, *others: RowFacts) -> RowFacts:
        for other in others:
            self.equal += other.equal
            self.among += other.among
            self.choices += other.choices
        return self

    def equate(self, left: Sequence[Term], right: Sequence[Term]) -> None:
        if len(left) == 1 or len(right) == 1:
            values = [term for term in (*left, *right) if isinstance(term, Value)]
            if len(left) == len(right) or values:
                self.equal += itertools.product(left, right)


def facts_over(facts: RowFacts, copied: Callable[[Node], Node]) -> RowFacts:
    """The same of other nodes."""
    pairs = [[term if isinstance(term, Value) else copied(term) for term in pair] for pair in facts.equal]
    return RowFacts(
        [(left, right) for left, right in pairs],
        [(copied(node), claim) for node, claim in facts.among],
        [[facts_over(side, copied) for side in sides] for sides in facts.choices],
    )


def claims_of(several: Iterable[RowFacts]) -> dict[Node, tuple[Claim, ...]]:
    """What is said of each column that is pinned, by what is equal to what."""
    facts = RowFacts().add(*several)
    known = RowFacts(list(facts.equal), list(facts.among))
    for sides in facts.choices:
        facts.among += _common_claims([claims_of([known, side]) for side in sides])
    parents: dict[Term, Term] = {}

    def root_of(term: Term) -> Term:
        while (above := parents.setdefault(term, term)) != term:
            term = above
        return term

    for left, right in facts.equal:
        parents[root_of(left)] = root_of(right)
    claims: dict[Term, dict[Claim, None]] = {}
    for term in list(parents):
        if isinstance(term, Value):
            claims.setdefault(root_of(term), {})[(term,)] = None
    for node, claim in facts.among:
        claims.setdefault(root_of(node), {})[claim] = None
    return {term: tuple(claims[root_of(term)]) for term in list(parents) if isinstance(term, tuple) and root_of(term) in claims}


def _common_claims(sides: Sequence[Mapping[Node, tuple[Claim, ...]]]) -> Iterator[tuple[Node, Claim]]:
    """What holds whichever side does: of each of them one claim."""
    for node in sides[0]:
        if all(node in side for side in sides):
            for chosen in itertools.islice(itertools.product(*(side[node] for side in sides)), CHOICES_MAX):
                yield node, tuple(dict.fromkeys(itertools.chain(*chosen)))
