"""Which partition columns a statement pins, and to what: read from its SQL text, so that any way to write it counts.

A column is pinned where every row that the statement sees of a table has one of some stated values in it. Pure: text and tables →
`KeyPin`s. What follows from a pin is in `pinned_keys`.

- `=`, IS, IN and row values pin; so does OR if all its sides do, and NOT of what is unequal. Ranges and functions do not.
- What equals a pinned column is pinned: in joins, over subqueries and CTEs, and from a query into those inside of it. Queries and
  VALUES may give the values.
- An outer join pins the columns of the side that it may leave out; FILTER those of the rows that an aggregate sees.

One rule: what is not understood pins nothing. Then a statement runs as if nobody had looked.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from procedures.statements.key_claims import (
    Claim,
    Exports,
    Node,
    RowFacts,
    Scope,
    Source,
    Term,
    Terms,
    Value,
    claims_of,
    either_side,
    facts_over,
)
from procedures.statements.sql_tokens import (
    Token,
    alias_of,
    clauses_of,
    is_query,
    joined_parts,
    read_tokens,
    split_at,
    split_conjuncts,
)


@dataclass(frozen=True, slots=True)
class KeyPin:
    """The partition column of one occurrence of a table, and what the statement says of it. All claims hold at once."""

    table: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """What has to be known of a declared table."""

    name: str
    columns: Collection[str]
    key: str | None  # the partition column; None: every partition has all rows
    numbered: bool = False  # it is the INTEGER primary key, which also has the names of the rowid


_ROWID: Final = frozenset(("rowid", "oid", "_rowid_"))
_EQUAL: Final = frozenset(("=", "==", "IS", "IS NOT DISTINCT FROM", "IN"))
_UNEQUAL: Final = frozenset(("!=", "<>", "IS NOT", "IS DISTINCT FROM", "NOT IN"))
_COMPOUND: Final = ("UNION", "INTERSECT", "EXCEPT")


def find_key_pins(sql: str, tables: Iterable[KeyedTable]) -> list[KeyPin]:
    """The pins of a statement, each once, in the order of the text."""
    reader = _Reader({table.name.lower(): table for table in tables})
    reader.read(read_tokens(sql), None, {})
    return reader.pins()


class _Reader:
    """Reads the queries of one statement, each of them once."""

    def __init__(self, tables: Mapping[str, KeyedTable]) -> None:
        self._tables = tables
        self._numbers = itertools.count()
        self._tables_of: dict[Node, str] = {}  # partition column -> its table
        self._scopes: list[Scope] = []
        self._known: dict[int, Exports] = {}  # address of a group -> the query in it

    def pins(self) -> list[KeyPin]:
        found: dict[KeyPin, None] = {}
        for scope in self._scopes:
            around = [each.facts for each in scope.chain()]
            found |= self._pins_of(around, [node for source in scope.sources for node in source.owned])
            for facts, nodes in scope.optional:
                around.append(facts)
                found |= self._pins_of(around, nodes)
        return list(found)

    def _pins_of(self, facts: Sequence[RowFacts], nodes: Iterable[Node]) -> dict[KeyPin, None]:
        claims = claims_of(facts)
        return {KeyPin(self._tables_of[node], claims[node]): None for node in nodes if node in claims}

    # -- queries

    def read(self, tokens: Sequence[Token], outer: Scope | None, ctes: Mapping[str, Exports]) -> Exports:
        """A query or a change, with everything inside of it."""
        tokens, ctes = self._read_ctes(tokens, outer, ctes)
        if tokens and tokens[0].is_word("INSERT", "REPLACE"):
            return self._read_insert(tokens, outer, ctes)
        parts = [self._read_core(part, outer, ctes) for part in split_at(tokens, *_COMPOUND)]
        return parts[0] if len(parts) == 1 else _united(parts)

    def _read_group(self, group: Token, scope: Scope) -> Exports:
        if id(group) not in self._known:
            self._known[id(group)] = self.read(group.inner, scope, scope.ctes)
        return self._known[id(group)]

    def _read_ctes(
        self, tokens: Sequence[Token], outer: Scope | None, ctes: Mapping[str, Exports]
    ) -> tuple[Sequence[Token], Mapping[str, Exports]]:
        if not tokens or not tokens[0].is_word("WITH"):
            return tokens, ctes
        known = dict(ctes)
        at = 2 if tokens[1].is_word("RECURSIVE") else 1
        while at < len(tokens):
            name = tokens[at].text.lower()
            end = next((i for i in range(at + 1, len(tokens)) if tokens[i].kind == "group" and is_query(tokens[i].inner)), at)
            names = next((token.inner for token in tokens[at + 1 : end] if token.kind == "group"), None)
            known[name] = Exports()  # inside of itself it has rows of any kind
            exports = self.read(tokens[end].inner, outer, known)
            if names is not None and exports.columns is not None:
                given = [part[0].text.lower() for part in split_at(names, sign=",")]
                exports = Exports(dict(zip(given, exports.columns.values(), strict=False)), exports.facts, exports.owned)
            known[name] = exports
            at = end + 1
            if at >= len(tokens) or not tokens[at].is_sign(","):
                break
            at += 1
        return tokens[at:], known

    def _read_insert(self, tokens: Sequence[Token], outer: Scope | None, ctes: Mapping[str, Exports]) -> Exports:
        """Rows are judged where they are written; here its query counts, and what else is inside."""
        ends = ("ON CONFLICT", "RETURNING")
        end = next((at for at, token in enumerate(tokens) if token.is_word(*ends)), len(tokens))
        begin = next((at for at, token in enumerate(tokens[:end]) if token.is_word("SELECT", "WITH", "VALUES")), end)
        if begin < end:
            self.read(tokens[begin:end], outer, ctes)
        self._read_inside(tokens[end:], Scope(outer, ctes))
        return Exports()

    def _read_core(self, tokens: Sequence[Token], outer: Scope | None, ctes: Mapping[str, Exports]) -> Exports:
        """One SELECT, UPDATE or DELETE."""
        scope = Scope(outer, ctes)
        self._scopes.append(scope)
        clauses = clauses_of(tokens)
        if tokens and tokens[0].is_word("VALUES"):
            self._read_inside(tokens, scope)
            return Exports(self._listed(tokens[1:], scope))
        if tokens and tokens[0].is_word("UPDATE", "DELETE"):
            target = clauses.get("", ()) if tokens[0].is_word("UPDATE") else ()
            self._add_sources([token for token in target[1:] if not token.is_word("OR", *_ACTIONS)], scope)
        self._add_sources(clauses.get("FROM", ()), scope)
        for name in ("WHERE", "HAVING"):
            scope.facts.add(self._conditions(clauses.get(name, ()), scope))
        self._read_inside(tokens, scope)
        owned = [node for source in scope.sources for node in source.owned]
        has_values = clauses.keys() <= {"", "SELECT", "FROM"}  # IN () is a SELECT without rows
        return Exports(_exported(clauses.get("SELECT", ()), scope, has_values=has_values), scope.facts, owned)

    def _listed(self, tokens: Sequence[Token], scope: Scope) -> dict[str, Terms]:
        """The columns of VALUES."""
        rows = [self._row(row, scope, RowFacts()) for row in split_at(tokens, sign=",")]
        return {f"column{at}": either_side(column) for at, column in enumerate(zip(*rows, strict=False), 1)}

    def _read_inside(self, tokens: Sequence[Token], scope: Scope) -> None:
        for token in tokens:
            if token.kind == "group" and is_query(token.inner):
                self._read_group(token, scope)
            elif token.inner and token.inner[0].is_word("WHERE"):  # FILTER: what an aggregate sees of the same rows
                seen = Scope(scope, scope.ctes, sources=scope.sources)
                self._scopes.append(seen)
                seen.facts.add(self._conditions(token.inner[1:], seen))
                self._read_inside(token.inner, seen)
            elif token.inner:
                self._read_inside(token.inner, scope)

    # -- sources

    def _add_sources(self, tokens: Sequence[Token], scope: Scope) -> None:
        """The elements of FROM, and the conditions between them."""
        kinds: set[str] = set()
        for words, part in joined_parts(tokens):
            kinds = {word.text.upper() for word in words}
            element, condition = [*split_at(part, "ON"), []][:2]
            before = len(scope.sources)
            added = self._add_source(element, scope)
            facts = self._conditions(condition, scope)
            for left, right in _shared_columns(element, scope, before, is_natural="NATURAL" in kinds):
                facts.equate(left, right)
            if "LEFT" in kinds:
                scope.optional.append((facts, added))
            elif not kinds & {"RIGHT", "FULL"}:
                scope.facts.add(facts)

    def _add_source(self, element: Sequence[Token], scope: Scope) -> list[Node]:
        """Returns: the partition columns of which it has rows."""
        if not element:
            return []
        first, rest = element[0], element[1:]
        alias = alias_of(rest)
        if first.kind == "group" and not is_query(first.inner):
            before = len(scope.sources)
            self._add_sources(first.inner, scope)
            return [node for source in scope.sources[before:] for node in source.owned]
        if first.kind == "group":
            source = _source_of(alias, self._read_group(first, scope), scope)
        elif rest and rest[0].is_sign(".") and len(rest) > 1:  # main.t
            return self._add_source(rest[1:], scope)
        elif rest and rest[0].kind == "group":  # a function that gives rows
            source = Source(alias, None)
        elif first.text.lower() in scope.ctes:
            source = _source_of(alias or first.text.lower(), self._copied(scope.ctes[first.text.lower()]), scope)
        else:
            source = self._declared(first.text.lower(), alias)
        scope.sources.append(source)
        return source.owned

    def _copied(self, exports: Exports) -> Exports:
        """A CTE that is used twice has rows of its own in each place."""
        numbers: dict[int, int] = {}

        def copied(node: Node) -> Node:
            number = numbers.setdefault(node[0], next(self._numbers))
            if node in self._tables_of:
                self._tables_of[number, node[1]] = self._tables_of[node]
            return number, node[1]

        columns = exports.columns and {
            name: tuple(term if isinstance(term, Value) else copied(term) for term in terms)
            for name, terms in exports.columns.items()
        }
        return Exports(columns, facts_over(exports.facts, copied), list(map(copied, exports.owned)))

    def _declared(self, name: str, alias: str) -> Source:
        table, number = self._tables.get(name), next(self._numbers)
        if table is None:
            return Source(alias or name, None)
        columns: dict[str, Terms] = {column.lower(): ((number, column.lower()),) for column in table.columns}
        owned: list[Node] = []
        if table.key is not None:
            owned = [(number, table.key.lower())]
            self._tables_of[owned[0]] = table.name
            columns |= {name: (owned[0],) for name in _ROWID if table.numbered and name not in columns}
        return Source(alias or name, columns, owned)

    # -- conditions

    def _conditions(self, tokens: Sequence[Token], scope: Scope, *, negated: bool = False) -> RowFacts:
        """What holds where a condition is true; `negated`: where it is false."""
        for parts, is_choice in ((split_at(tokens, "OR"), not negated), (split_conjuncts(tokens), negated)):
            if len(parts) > 1:
                sides = [self._conditions(part, scope, negated=negated) for part in parts]
                return RowFacts.one_of(sides) if is_choice else RowFacts().add(*sides)
        texts = [token.text for token in tokens]
        if not tokens or texts == ["1" if negated else "0", "=", "1"]:  # SQLAlchemy's true and false
            return RowFacts(is_never=bool(tokens))
        first, rest = tokens[0], tokens[1:]
        if first.is_word("NOT"):
            return self._conditions(rest, scope, negated=not negated)
        if first.kind == "group" and not is_query(first.inner) and (flag := _flag_of(rest)) is not None:
            return self._conditions(first.inner, scope, negated=negated if flag else not negated)
        if first.is_word("EXISTS") and not negated and len(rest) == 1 and rest[0].kind == "group":
            return self._read_group(rest[0], scope).facts
        return self._compared(tokens, scope, _UNEQUAL if negated else _EQUAL)

    def _compared(self, tokens: Sequence[Token], scope: Scope, signs: Collection[str]) -> RowFacts:
        """What follows from one comparison, if it has one of these signs."""
        facts = RowFacts()
        at = next((i for i, token in enumerate(tokens) if _sign_of(token) in signs), None)
        if at is None:
            return facts
        left, right = self._row(tokens[:at], scope, facts), tokens[at + 1 :]
        if not tokens[at].is_word("IN", "NOT IN"):
            for one, other in zip(left, self._row(right, scope, facts), strict=False):
                facts.equate(one, other)
        elif len(right) == 1 and right[0].kind == "group":
            self._compare_with_list(left, right[0], scope, facts)
        return facts

    def _compare_with_list(self, left: Sequence[Sequence[Term]], group: Token, scope: Scope, facts: RowFacts) -> None:
        tokens = group.inner
        if is_query(tokens) and not tokens[0].is_word("VALUES"):
            for one, other in zip(left, self._row([group], scope, facts), strict=False):
                facts.equate(one, other)
            return
        elements = split_at(tokens[1:] if is_query(tokens) else tokens, sign=",")
        rows = [self._row(element, scope, RowFacts()) for element in elements]
        for place, one in enumerate(left):
            values = [row[place] if place < len(row) else () for row in rows]
            if len(one) == 1 and isinstance(one[0], tuple) and all(len(v) == 1 and isinstance(v[0], Value) for v in values):
                facts.among.append((one[0], tuple(v[0] for v in values)))  # type: ignore[misc] # as just checked

    def _row(self, tokens: Sequence[Token], scope: Scope, facts: RowFacts) -> list[Sequence[Term]]:
        """The terms of a row value, or the only one; () for what is none."""
        if len(tokens) == 1 and tokens[0].kind == "group":
            inner = tokens[0].inner
            if not is_query(inner):
                return [term for part in split_at(inner, sign=",") for term in self._row(part, scope, facts)]
            exports = self._read_group(tokens[0], scope)
            facts.add(exports.facts)
            return list((exports.columns or {}).values())
        return [_term(tokens, scope)]


_ACTIONS: Final = ("ROLLBACK", "ABORT", "REPLACE", "FAIL", "IGNORE")


def _flag_of(tokens: Sequence[Token]) -> bool | None:
    """What comes after a condition in brackets: nothing, or `= 1` or `= 0`, as SQLAlchemy writes of a column."""
    if not tokens:
        return True
    if len(tokens) != 2 or _sign_of(tokens[0]) not in ("=", "==", "IS") or tokens[1].value not in (0, 1):
        return None
    return bool(tokens[1].value)


def _sign_of(token: Token) -> str:
    return token.text.upper() if token.kind in ("word", "sign") else ""


def _term(tokens: Sequence[Token], scope: Scope) -> tuple[Term, ...]:
    """A column, a parameter or a constant; () for all else."""
    shape = [token.kind if token.kind != "sign" else token.text for token in tokens]
    last = tokens[-1] if tokens else None
    if last is None:
        return ()
    if shape == ["word", "group"] and tokens[0].is_word("CAST"):  # it changes no value that its column could hold
        return tuple(term for term in _term(split_at(last.inner, "AS")[0], scope) if isinstance(term, Value))
    if shape == ["parameter"]:
        return (Value(last.text),)
    if last.kind == "value" and shape[:-1] in ([], ["+"], ["-"]):
        negative = shape[0] == "-" and isinstance(last.value, int | float)
        return (Value(None, -last.value if negative else last.value),)
    if shape[1::2] == ["."] * (len(shape) // 2) and all(kind in ("word", "name") for kind in shape[::2]):
        return scope.find(last.text.lower(), tokens[-3].text.lower() if len(tokens) > 1 else None)
    return ()


def _source_of(name: str, exports: Exports, scope: Scope) -> Source:
    """A subquery or CTE: what its conditions say holds for each of its rows."""
    scope.facts.add(exports.facts)
    return Source(name, exports.columns, exports.owned)


def _exported(tokens: Sequence[Token], scope: Scope, *, has_values: bool) -> dict[str, Terms] | None:
    found: dict[str, Terms] = {}
    for part in split_at([token for token in tokens if not token.is_word("DISTINCT", "ALL")], sign=","):
        if part and part[-1].is_sign("*") and len(part) in (1, 3):
            sources = [source for source in scope.sources if len(part) == 1 or source.name == part[0].text.lower()]
            if any(source.columns is None for source in sources):
                return None
            for source in sources:
                found |= {name: terms for name, terms in (source.columns or {}).items() if name not in _ROWID}
            continue
        item = split_at(part, "AS")
        terms = tuple(term for term in _term(item[0], scope) if has_values or isinstance(term, tuple))
        name = (item[1] if len(item) > 1 else part)[-1:]
        found[name[0].text.lower() if name and name[0].kind in ("word", "name") else f"({len(found)})"] = terms
    return found


def _united(parts: Sequence[Exports]) -> Exports:
    """What a UNION and its like give: a column is one of each part."""
    owned = [node for part in parts for node in part.owned]
    if any(part.columns is None for part in parts):
        return Exports(owned=owned)
    united = map(either_side, zip(*(list((part.columns or {}).values()) for part in parts), strict=False))
    return Exports(dict(zip(parts[0].columns or {}, united, strict=False)), owned=owned)


def _shared_columns(element: Sequence[Token], scope: Scope, before: int, *, is_natural: bool) -> Iterator[tuple[Terms, Terms]]:
    """The columns that USING or NATURAL equates: of the sources `before` this element of FROM, and of it."""
    lists = [group for word, group in itertools.pairwise(element) if word.is_word("USING")]
    names = {token.text.lower() for group in lists for token in group.inner}
    sources = scope.sources
    for source in sources[before:]:
        for name, terms in (source.columns or {}).items():
            if name in names or (is_natural and name not in _ROWID):
                known = next((one.columns[name] for one in sources[:before] if one.columns and name in one.columns), ())
                yield known, terms
