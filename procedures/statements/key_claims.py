"""What follows from conditions: which columns are equal to which, and which values they may have. No SQL here.

A `Scope` knows what the names of one query stand for.

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
Terms = tuple[Term, ...]  # what a name stands for: several columns, or several values, of a UNION


@dataclass(slots=True)
class RowFacts:
    """What holds for every row: pairs that are equal, columns that have one of several values, and one of each choice."""

    equal: list[tuple[Term, Term]] = field(default_factory=list)
    among: list[tuple[Node, Claim]] = field(default_factory=list)
    choices: list[list[RowFacts]] = field(default_factory=list)
    is_never: bool = False  # there is no such row

    @classmethod
    def one_of(cls, sides: Sequence[RowFacts]) -> RowFacts:
        """Where one of several conditions holds, which cannot be one that no row meets."""
        possible = [side for side in sides if not side.is_never]
        return cls(choices=[possible]) if possible else cls(is_never=True)

    def add(self, *others: RowFacts) -> RowFacts:
        for other in others:
            self.is_never |= other.is_never
            self.equal += other.equal
            self.among += other.among
            self.choices += other.choices
        return self

    def equate(self, left: Sequence[Term], right: Sequence[Term]) -> None:
        """The terms of a UNION's column are one for each row of it: one of several values, or the columns of its parts."""
        for one, several in ((left, right), (right, left)):
            if len(several) > 1 and isinstance(several[0], Value):
                if len(one) == 1 and isinstance(one[0], tuple):
                    self.among.append((one[0], tuple(term for term in several if isinstance(term, Value))))
                return
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
        facts.is_never,
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


@dataclass(slots=True)
class Source:
    """One element of FROM."""

    name: str
    columns: Mapping[str, Terms] | None  # None: not known
    owned: list[Node] = field(default_factory=list)  # partition columns of it, and of what it is made of


@dataclass(slots=True)
class Exports:
    """What a query gives to the one around it."""

    columns: dict[str, Terms] | None = None  # by name, in order; None: not known
    facts: RowFacts = field(default_factory=RowFacts)
    owned: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """The sources of one query, and what its conditions say."""

    outer: Scope | None
    ctes: Mapping[str, Exports]
    sources: list[Source] = field(default_factory=list)
    facts: RowFacts = field(default_factory=RowFacts)
    optional: list[tuple[RowFacts, list[Node]]] = field(default_factory=list)  # outer joins: conditions, and columns they pin

    def find(self, name: str, table: str | None) -> Terms:
        """What a name stands for; () where that is not known."""
        meant = [source for source in self.sources if table in (None, source.name)]
        for source in meant:
            if source.columns is not None and name in source.columns:
                return source.columns[name]
        may_be_here = any(source.columns is None for source in meant) or (meant and table is not None)
        return () if may_be_here or self.outer is None else self.outer.find(name, table)

    def chain(self) -> Iterator[Scope]:
        yield self
        if self.outer is not None:
            yield from self.outer.chain()


def either_side(sides: Sequence[Sequence[Term]]) -> Terms:
    """A column that has the terms of one side in each row: values if each side is one, else the columns among them."""
    terms = tuple(itertools.chain(*sides))
    if all(sides) and all(isinstance(term, Value) for term in terms):
        return terms
    return tuple(term for term in terms if isinstance(term, tuple))
