"""Attributes of elements in the key of a statement: one walk for each kind of attribute that SQLAlchemy knows.

What an attribute puts into a key says where it ends, so that no two structures have one key: lists begin with their length, and
what may be missing is preceded by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Protocol

from sqlalchemy.sql.cache_key import HasCacheKey
from sqlalchemy.sql.elements import BindParameter, ClauseElement, _anonymous_label
from sqlalchemy.sql.visitors import InternalTraversal

Key = list[Any]
Literals = list[BindParameter[Any]]
END: Final = "(end)"  # between the parts of a key: a string, so that a key can be read


class ForeignElement(Exception):
    """An element whose key is SQLAlchemy's to make."""


class Met(dict[Any, int]):
    """What was met in one statement, by address or by anonymous name, numbered in that order."""

    __slots__ = ()

    def __missing__(self, new: Any) -> int:
        number = self[new] = len(self)
        return number


Walk = Callable[[Any, Key, Met, Literals], None]  # of an element, or of the value of an attribute; raises ForeignElement


class KeyMaker(Protocol):
    """What attributes need of `structure_keys.StructureKeys`."""

    walk: Walk
    atoms: dict[int, int]

    def number_of_type(self, type_: Any) -> int: ...
    def number_of_atom(self, atom: Any) -> int: ...


def sorted_items(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple([(name, values[name]) for name in sorted(values)])


def _of_element(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        key.append(name)
        if value is None:
            key.append(None)
        else:
            keys.walk(value, key, met, literals)

    return walk


def _of_elements(keys: KeyMaker, name: str, _: Any) -> Walk:
    number_of, walk_element = keys.atoms.get, keys.walk

    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for element in value:
                number = number_of(id(element))
                if number is None:
                    walk_element(element, key, met, literals)
                else:
                    key.append(number)

    return walk


def _of_element_tuples(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, *map(len, value), END)
            for elements in value:
                for element in elements:
                    keys.walk(element, key, met, literals)

    return walk


def _of_mixed(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for each in value:
                if isinstance(each, HasCacheKey):
                    keys.walk(each, key, met, literals)
                else:
                    key.append(each)

    return walk


def _of_named_elements(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, (*sorted(value),))
            for each in sorted(value):
                keys.walk(value[each], key, met, literals)

    return walk


def _of_assignments(keys: KeyMaker, name: str, _: Any) -> Walk:
    walk_element = keys.walk

    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for column, assigned in value.items():
                if type(column) is str or not hasattr(column, "__clause_element__"):
                    key.append(column)
                else:
                    walk_element(column, key, met, literals)
                walk_element(assigned, key, met, literals)

    return walk


def _of_prefixes(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for prefix, dialect in value:
                keys.walk(prefix, key, met, literals)
                key.append(dialect)

    return walk


def _of_joins(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for *elements, flags in value:
                key.append(sorted_items(flags))
                for element in elements:
                    if element is None:
                        key.append(None)
                    else:
                        keys.walk(element, key, met, literals)

    return walk


def _of_annotations(keys: KeyMaker, name: str, _: Any) -> Walk:
    """What an element has of the class that it belongs to."""

    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        if value:
            key += (name, len(value))
            for note in sorted(value):
                noted = value[note]
                if isinstance(noted, ClauseElement):
                    raise ForeignElement
                key += (note, keys.number_of_atom(noted) if isinstance(noted, HasCacheKey) else noted)

    return walk


def _of_plugin(keys: KeyMaker, name: str, _: Any) -> Walk:
    """What statements over classes have: the mapper of one."""

    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        if value:
            subject = value["plugin_subject"]
            key += (name, value["compile_state_plugin"], keys.number_of_atom(subject) if subject else None)

    return walk


def _of_type(keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        key += (name, None if value is None else keys.number_of_type(value))

    return walk


def _of_name(_keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, met: Met, _literals: Literals) -> None:
        key += (name, value.apply_map(met) if isinstance(value, _anonymous_label) else value)

    return walk


def _of_plain_value(_keys: KeyMaker, name: str, default: Any) -> Walk:
    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        if isinstance(value, Enum):
            key += (name, value._name_)  # an enum's own hash is a function of Python
        elif value != default and (value or default):
            key += (name, value or None)

    return walk


def _of_plain_dict(_keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        if value:
            key += (name, sorted_items(value))

    return walk


def _of_names(_keys: KeyMaker, name: str, _: Any) -> Walk:
    def walk(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
        if value:
            key += (name, tuple(value))

    return walk


def _of_others(_keys: KeyMaker, _name: str, _: Any) -> Walk:
    """Of kinds that have no place here, unless they are empty."""

    def walk(value: Any, _key: Key, _met: Met, _literals: Literals) -> None:
        if value is None or value:
            raise ForeignElement

    return walk


_WALKS_OF: Final[Mapping[InternalTraversal, Callable[[KeyMaker, str, Any], Walk]]] = {
    InternalTraversal.dp_has_cache_key: _of_element,
    InternalTraversal.dp_clauseelement: _of_element,
    InternalTraversal.dp_clauseelement_list: _of_elements,
    InternalTraversal.dp_clauseelement_tuple: _of_elements,
    InternalTraversal.dp_memoized_select_entities: _of_elements,
    InternalTraversal.dp_clauseelement_tuples: _of_element_tuples,
    InternalTraversal.dp_multi_list: _of_mixed,
    InternalTraversal.dp_string_clauseelement_dict: _of_named_elements,
    InternalTraversal.dp_dml_values: _of_assignments,
    InternalTraversal.dp_prefix_sequence: _of_prefixes,
    InternalTraversal.dp_setup_join_tuple: _of_joins,
    InternalTraversal.dp_propagate_attrs: _of_plugin,
    InternalTraversal.dp_annotations_key: _of_annotations,
    InternalTraversal.dp_type: _of_type,
    InternalTraversal.dp_anon_name: _of_name,
    InternalTraversal.dp_plain_dict: _of_plain_dict,
    InternalTraversal.dp_string_list: _of_names,
    InternalTraversal.dp_string: _of_plain_value,
    InternalTraversal.dp_boolean: _of_plain_value,
    InternalTraversal.dp_operator: _of_plain_value,
    InternalTraversal.dp_plain_obj: _of_plain_value,
}
PLAIN_KINDS: Final = frozenset(visit for visit, walk in _WALKS_OF.items() if walk in (_of_plain_value, _of_name, _of_type))


def walk_of_attribute(keys: KeyMaker, name: str, kind: InternalTraversal, default: Any) -> Walk:
    """How the values of an attribute of this kind are walked; `default` is that of the class."""
    return _WALKS_OF.get(kind, _of_others)(keys, name, default)
