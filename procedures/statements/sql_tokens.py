"""The tokens of an SQL text, with brackets and CASE … END nested: what is at one level can be split by one keyword.

One rule: it reads what SQLite has accepted. Of any other text it may make anything, but no exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Kind = Literal["word", "name", "value", "parameter", "sign", "group", "case"]

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<blob>[xX]'[0-9A-Fa-f]*')
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
    |(?P<list>__\[POSTCOMPILE_[^\]]*\])
    |(?P<parameter>[:@$][^\W]\w*|\?\d*)
    |(?P<number>0[xX][0-9A-Fa-f]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<sign>->>|->|\|\||<<|>>|<=|>=|<>|!=|==|.)""",
    re.DOTALL | re.VERBOSE,
)
_CLAUSES: Final = ("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "RETURNING", "SET", "ON CONFLICT")
_JOINS: Final = frozenset(("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "NATURAL"))
# Several words that are one operator or clause; without this, FROM and ON would be taken for those of a query.
_JOINED: Final = (
    ("IS", "NOT", "DISTINCT", "FROM"), ("IS", "DISTINCT", "FROM"), ("IS", "NOT"), ("NOT", "IN"), ("ON", "CONFLICT"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token, or what is between two brackets."""

    kind: Kind
    text: str = ""  # of a name without its quotes; of a parameter its name
    value: Any = None  # of a constant
    inner: list[Token] = field(default_factory=list)

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs


def read_tokens(sql: str) -> list[Token]:
    """The tokens of the text, nested."""
    levels: list[list[Token]] = [[]]
    for token in _join_words(_flat(sql)):
        if token.is_sign("(") or token.is_word("CASE"):
            group = Token("group" if token.kind == "sign" else "case")
            levels[-1].append(group)
            levels.append(group.inner)
        elif (token.is_sign(")") or token.is_word("END")) and len(levels) > 1:
            levels.pop()
        else:
            levels[-1].append(token)
    return levels[0]


def _flat(sql: str) -> Iterator[Token]:
    for found in _TOKEN.finditer(sql):
        kind, text = found.lastgroup, found[0]
        if kind == "name":
            yield Token("name", text[1:-1].replace(text[0] * 2, text[0]))
        elif kind == "list":  # what SQLAlchemy has in the place of a list, before its length is known
            yield Token("parameter", text[len("__[POSTCOMPILE_") : -1])
        elif kind == "parameter":
            yield Token("parameter", text[1:])
        elif kind in ("text", "blob", "number"):
            yield Token("value", text, _CONSTANTS[kind](text))
        elif kind in ("word", "sign"):
            yield Token("word" if kind == "word" else "sign", text)


def _number(text: str) -> int | float:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return int(text) if text.isdigit() else float(text)


_CONSTANTS: Final[dict[str, Callable[[str], Any]]] = {
    "text": lambda text: text[1:-1].replace("''", "'"), "blob": lambda text: bytes.fromhex(text[2:-1]), "number": _number,
}  # fmt: skip


def _join_words(tokens: Iterator[Token]) -> Iterator[Token]:
    waiting = list(tokens)
    at = 0
    while at < len(waiting):
        words = next((words for words in _JOINED if _begins_with(waiting[at : at + len(words)], words)), None)
        yield waiting[at] if words is None else Token("word", " ".join(words))
        at += 1 if words is None else len(words)


def _begins_with(tokens: Sequence[Token], words: Sequence[str]) -> bool:
    return len(tokens) == len(words) and all(token.is_word(word) for token, word in zip(tokens, words, strict=True))


def split_at(tokens: Sequence[Token], *words: str, sign: str = "") -> list[list[Token]]:
    """The parts between these words, or this sign, of one level."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.is_word(*words) if words else token.is_sign(sign):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def split_conjuncts(tokens: Sequence[Token]) -> list[list[Token]]:
    """The parts between the ANDs of one level; one that belongs to BETWEEN is none of them."""
    parts: list[list[Token]] = [[]]
    between = 0
    for token in tokens:
        between += token.is_word("BETWEEN")
        if not token.is_word("AND"):
            parts[-1].append(token)
        elif between:
            between -= 1
            parts[-1].append(token)
        else:
            parts.append([])
    return parts


def is_query(tokens: Sequence[Token]) -> bool:
    """Whether it is what is inside the brackets of a subquery."""
    return bool(tokens) and tokens[0].is_word("SELECT", "WITH", "VALUES")


def clauses_of(tokens: Sequence[Token]) -> dict[str, list[Token]]:
    """First word -> the tokens after it; "" -> what comes before the first clause."""
    found: dict[str, list[Token]] = {"": []}
    name = ""
    for token in tokens:
        if token.is_word(*_CLAUSES):
            name = token.text.upper()
            found.setdefault(name, [])
        else:
            found[name].append(token)
    return found


def joined_parts(tokens: Sequence[Token]) -> Iterator[tuple[list[Token], list[Token]]]:
    """(words of the join, element with its condition) for every element of FROM."""
    words: list[Token] = []
    part: list[Token] = []
    for token in tokens:
        if token.is_word(*_JOINS) or token.is_sign(","):
            if part:
                yield words, part
                words, part = [], []
            words.append(token)
        else:
            part.append(token)
    if part:
        yield words, part


def alias_of(tokens: Sequence[Token]) -> str:
    """The name that an element of FROM is given; "" for none."""
    named = [token for token in tokens if token.kind in ("word", "name")]
    if named and named[0].is_word("AS"):
        named = named[1:]
    is_alias = named and not named[0].is_word("INDEXED", "NOT", "USING")
    return named[0].text.lower() if is_alias else ""
