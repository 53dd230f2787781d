"""CREATE statements as SQLite keeps them, taken apart: the columns and constraints of a table, and what must be equal in two.

SQLite edits these texts itself. RENAME quotes names, and DROP COLUMN and ADD COLUMN leave other white space. So texts are
compared by their tokens, without quotes that a name does not need; constraints of a table have no order.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Final

from procedures.errors import StateRefused

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+) | (?P<text>'(?:[^']|'')*') | (?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<word>[\w$.]+) | (?P<sign><=|>=|<>|!=|==|\|\||<<|>>|->>|->|.)""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*", re.ASCII)
_OF_TABLE: Final = frozenset(("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"))
_AFTER_TYPE: Final = frozenset(("CONSTRAINT", "PRIMARY", "NOT", "NULL", "UNIQUE", "CHECK", "DEFAULT", "COLLATE", "REFERENCES",
    "GENERATED", "AS"))  # fmt: skip

Key = tuple[str, ...]


def unquoted(token: str) -> str:
    """A name without its quotes."""
    if token[0] in '"`':
        return token[1:-1].replace(token[0] * 2, token[0])
    return token[1:-1] if token[0] == "[" else token


def quoted(name: str) -> str:
    """A name as SQL always takes it."""
    return '"' + name.replace('"', '""') + '"'


def tokens_of(sql: str) -> list[str]:
    """Without white space."""
    return [match[0] for match in _TOKEN.finditer(sql) if match.lastgroup != "space"]


def text_key(sql: str) -> Key:
    """What must be equal in two texts for them to say the same."""
    return tuple(_plain(token) for token in tokens_of(sql))


def _plain(token: str) -> str:
    if token[0] not in '"`[':
        return token
    name = unquoted(token)
    return name if _PLAIN.fullmatch(name) else quoted(name)


@dataclass(frozen=True, slots=True)
class ColumnText:
    """One column of a CREATE TABLE."""

    name: str
    text: str

    @property
    def key(self) -> Key:
        return text_key(self.text)

    @property
    def type(self) -> str:
        tokens = tokens_of(self.text)
        return tokens[1] if len(tokens) > 1 and tokens[1].upper() not in _AFTER_TYPE else ""

    @property
    def not_null(self) -> bool:
        tokens = [token.upper() for token in self._outside()]
        return any(pair == ("NOT", "NULL") for pair in itertools.pairwise(tokens))

    @property
    def default(self) -> str:
        """Its constant default as SQL; "" without one."""
        found = self.clause("DEFAULT")
        return found.split(None, 1)[1] if found else ""

    @property
    def generated(self) -> bool:
        return "GENERATED" in (token.upper() for token in self._outside())

    def _outside(self) -> list[str]:
        """Tokens that are in no parentheses."""
        depth, found = 0, []
        for token in tokens_of(self.text):
            depth += (token == "(") - (token == ")")  # noqa: S105 - a token of SQL
            if depth == 0:
                found.append(token)
        return found

    def clause(self, word: str) -> str:
        """`DEFAULT …`, `CONSTRAINT … CHECK (…)`: the part that begins with this word; "" without one."""
        return next((text for text in column_parts(self.text)[1:] if text.upper().startswith(word)), "")


def column_parts(text: str) -> list[str]:
    """The text of a column: name with type, then each of its clauses."""
    parts, begin, depth = [], 0, 0
    matches = [match for match in _TOKEN.finditer(text) if match.lastgroup != "space"]
    for at, match in enumerate(matches):
        token = match[0].upper()
        depth += (token == "(") - (token == ")")  # noqa: S105 - a token of SQL
        previous = matches[at - 1][0].upper() if at else ""
        starts = token in ("NOT", "CONSTRAINT", "DEFAULT", "CHECK", "GENERATED", "REFERENCES", "COLLATE", "UNIQUE", "PRIMARY")
        continues = token == "CHECK" and at >= 2 and matches[at - 2][0].upper() == "CONSTRAINT"  # noqa: S105 - its name is between
        if depth == 0 and at and starts and not continues and previous != "DEFAULT":
            parts.append(text[begin : match.start()].strip())
            begin = match.start()
    return [*parts, text[begin:].strip()]


@dataclass(frozen=True, slots=True)
class TableText:
    """A CREATE TABLE, taken apart."""

    name: str
    columns: tuple[ColumnText, ...]
    constraints: tuple[str, ...]  # text of each
    options: str  # STRICT, WITHOUT ROWID

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def constraint_keys(self) -> list[Key]:
        return sorted(map(text_key, self.constraints))

    @property
    def primary_key(self) -> list[str]:
        """Names of its columns, in order."""
        for text in self.constraints:
            words = constraint_words(text)
            if words[:1] == ["PRIMARY"]:
                return names_in_parentheses(text)
        return []

    def column(self, name: str) -> ColumnText | None:
        return next((column for column in self.columns if column.name == name), None)

    def with_column(self, changed: ColumnText) -> TableText:
        """The same with this column as it is here."""
        columns = tuple(changed if column.name == changed.name else column for column in self.columns)
        return replace(self, columns=columns)

    def create(self, name: str) -> str:
        """The statement that creates it under a name."""
        items = [column.text for column in self.columns] + list(self.constraints)
        plain = name if _PLAIN.fullmatch(name) else quoted(name)
        return f"CREATE TABLE {plain} ( {', '.join(items)} ) {self.options}".strip()


def constraint_words(text: str) -> list[str]:
    """Tokens of a table's constraint after its name, in capitals."""
    tokens = [token.upper() for token in tokens_of(text)]
    return tokens[2:] if tokens[:1] == ["CONSTRAINT"] else tokens


def constraint_name(text: str) -> str:
    """ "" where it has none."""
    tokens = tokens_of(text)
    return unquoted(tokens[1]) if tokens[0].upper() == "CONSTRAINT" else ""


def names_in_parentheses(text: str) -> list[str]:
    """The names in the first parentheses of a text."""
    tokens = tokens_of(text)
    begin = tokens.index("(")
    end = tokens.index(")", begin)
    return [unquoted(token) for token in tokens[begin + 1 : end] if token != ","]  # noqa: S105 - a token of SQL


def names_of(text: str) -> set[str]:
    """Every name that a text could mean."""
    return {unquoted(token) for token in tokens_of(text) if token[0] != "'"}


def parse_table(sql: str) -> TableText:
    """Raises: StateRefused for what is no CREATE TABLE of a declared table."""
    matches = list(_TOKEN.finditer(sql))
    solid = [match for match in matches if match.lastgroup != "space"]
    if [match[0].upper() for match in solid[:2]] != ["CREATE", "TABLE"] or solid[3][0] != "(":
        raise StateRefused(f"<{sql}> is no CREATE TABLE of a declared table")
    depth, begin, items, end = 1, solid[3].end(), [], len(sql)
    for match in solid[4:]:
        token = match[0]
        depth += (token == "(") - (token == ")")  # noqa: S105 - a token of SQL
        if depth == 0 or (depth == 1 and token == ","):  # noqa: S105 - a token of SQL
            items.append(sql[begin : match.start()].strip())
            begin = match.end()
        if depth == 0:
            end = match.end()
            break
    columns = [text for text in items if tokens_of(text)[0].upper() not in _OF_TABLE]
    constraints = [text for text in items if tokens_of(text)[0].upper() in _OF_TABLE]
    return TableText(
        unquoted(solid[2][0]),
        tuple(ColumnText(unquoted(tokens_of(text)[0]), text) for text in columns),
        tuple(constraints),
        sql[end:].strip(),
    )
