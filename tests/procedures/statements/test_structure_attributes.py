"""Each kind of attribute puts what says where it ends, or nothing where it is empty."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, literal
from sqlalchemy.sql.elements import _anonymous_label
from sqlalchemy.sql.visitors import InternalTraversal as Kind

from procedures.statements.structure_attributes import ForeignElement, Literals, Met, walk_of_attribute
from procedures.statements.structure_keys import StructureKeys

TABLE = Table("t", MetaData(), Column("a", Integer))
ONE = TABLE.c.a


def key_of(kind: Kind, value: Any, default: Any = None) -> tuple[list[Any], Literals]:
    """What an attribute with this value puts into a key, and the values that it holds."""
    key: list[Any] = []
    literals: Literals = []
    walk_of_attribute(StructureKeys(), "name", kind, default)(value, key, Met(), literals)
    return key, literals


@pytest.mark.parametrize("kind", [kind for kind in Kind if "element" in kind.name and kind is not Kind.dp_clauseelement])
@pytest.mark.parametrize("empty", [(), {}])
def test_empty_collections_put_nothing(kind: Kind, empty: Any) -> None:
    """Neither those that are walked, nor those that are left to SQLAlchemy where they hold something."""
    assert key_of(kind, empty) == ([], [])


def test_what_is_not_known_is_left_to_sqlalchemy() -> None:
    """Options and hints have no place in a key of ours."""
    for kind in (Kind.dp_executable_options, Kind.dp_table_hint_list, Kind.dp_dml_multi_values, Kind.dp_params):
        with pytest.raises(ForeignElement):
            key_of(kind, {"a": 1})


def test_collections_say_how_long_they_are() -> None:
    """So the parts of one cannot be those of what follows."""
    one, two = literal(1), literal(2)
    assert key_of(Kind.dp_clauseelement_list, [ONE, ONE])[0][:2] == ["name", 2]
    assert key_of(Kind.dp_clauseelement_tuples, [(ONE, ONE), (ONE,)])[0][:3] == ["name", 2, 1]
    key, literals = key_of(Kind.dp_dml_values, {"a": one, "b": two})
    assert key[:3] == ["name", 2, "a"]
    assert [id(each) for each in literals] == [id(one), id(two)]


def test_what_the_class_has_puts_nothing() -> None:
    """And an attribute that has another value says so, also where it is nothing."""
    assert key_of(Kind.dp_boolean, value=False) == ([], [])
    assert key_of(Kind.dp_string, "UNION", "UNION") == ([], [])
    assert key_of(Kind.dp_string, "UNION")[0] == ["name", "UNION"]
    assert key_of(Kind.dp_boolean, value=False, default=True)[0] == ["name", None]


def test_anonymous_names_are_numbers() -> None:
    """The address that they are made of is in no key."""
    name = _anonymous_label.safe_construct(id(ONE), "x")
    assert key_of(Kind.dp_anon_name, name)[0] == ["name", "0"]
    assert key_of(Kind.dp_anon_name, "plain")[0] == ["name", "plain"]
