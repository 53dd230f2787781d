"""The tokens of an SQL text."""

from __future__ import annotations

import pytest

from procedures.statements.sql_tokens import alias_of, clauses_of, is_query, joined_parts, read_tokens, split_conjuncts


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("'it''s'", ["value"], "it's"),
        ("x'0aFF'", ["value"], b"\n\xff"),
        ("0x10", ["value"], 16),
        ("2.5e1", ["value"], 25.0),
        ('"a""b"', ["name"], None),
        ("[a b]", ["name"], None),
        (":x", ["parameter"], None),
        ("__[POSTCOMPILE_ids]", ["parameter"], None),
        ("a -- no 'text\n", ["word"], None),
        ("/* ( */ a", ["word"], None),
        ("a->>'$.b'", ["word", "sign", "value"], None),
        ("IS  NOT DISTINCT FROM", ["word"], None),
    ],
)
def test_a_text_is_read_as_sqlite_reads_it(text: str, kinds: list[str], value: object) -> None:
    """Quotes, comments, numbers and operators of several words are one token each."""
    tokens = read_tokens(text)
    assert [token.kind for token in tokens] == kinds
    assert tokens[0].value == value


def test_levels_are_nested() -> None:
    """An AND inside of brackets or of a CASE, and that of BETWEEN, is none of its level."""
    tokens = read_tokens("a AND (b AND c) AND CASE WHEN d AND e THEN 1 END AND f BETWEEN 1 AND 2 AND g")
    assert [part[0].kind for part in split_conjuncts(tokens)] == ["word", "group", "case", "word", "word"]


def test_text_that_is_no_sql_raises_nothing() -> None:
    """It is read somehow: what it may mean is not known."""
    for text in ("", ")", "((", "'open", "END END", "CASE (", "WITH", "\0"):
        read_tokens(text)


def test_clauses_and_joins_are_told_apart() -> None:
    """ON CONFLICT is no ON, and IS DISTINCT FROM no FROM."""
    clauses = clauses_of(
        read_tokens("SELECT a FROM t AS x LEFT JOIN (SELECT 1) y ON x.a IS DISTINCT FROM 1 WHERE b ON CONFLICT DO NOTHING")
    )
    assert set(clauses) == {"", "SELECT", "FROM", "WHERE", "ON CONFLICT"}
    (_, first), (words, second) = joined_parts(clauses["FROM"])
    assert (alias_of(first[1:]), alias_of(second[1:2]), [word.text for word in words]) == ("x", "y", ["LEFT", "JOIN"])
    assert is_query(second[0].inner)
