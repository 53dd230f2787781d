"""Keys of statements by their structure: equal for two statements exactly where SQLAlchemy's cache keys are, and cheaper.

SQLAlchemy describes class by class what belongs to a key (`_traverse_internals`). It builds nested tuples with a number for each
element, and asks each element for every attribute that its class may have. Here one walk over values fills one list. It
goes by the classes of the values:

- a table, and a column of a table, is one number, and so is a column type;
- of other elements only those attributes are visited that this one has set: its plan, found by the names in its `__dict__`;
- an element has a number only where it comes again, and an anonymous name likewise;
- a collection begins with its length, an attribute with its name, and an element has an end, so no two structures have one key.

A key holds no address. The addresses in `StructureKeys` are of objects that it keeps alive, so none can be that of another one.
What is not known here, a class that makes its own key or an attribute of a rare kind, leaves the whole statement to SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from inspect import getattr_static
from typing import Any, Final, NoReturn

from sqlalchemy import Table
from sqlalchemy.schema import Column
from sqlalchemy.sql.cache_key import NO_CACHE, HasCacheKey
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, ClauseElement, _anonymous_label
from sqlalchemy.sql.sqltypes import NullType
from sqlalchemy.sql.visitors import InternalTraversal, anon_map
from sqlalchemy.types import TypeEngine

ATOMS_MAX: Final = 1 << 14  # tables and their columns, and column types that differ; statements with more are SQLAlchemy's
PLANS_MAX: Final = 4096  # a class has one for each set of attributes that its elements have
TYPES_MAX: Final = 1024  # objects; calls make them, as in cast(x, Numeric(10, 2)), so they are not kept for ever

Key = list[Any]
Literals = list[BindParameter[Any]]
Structure = tuple[Hashable, Literals]  # key, and values in an order that is the same for all statements with this key

# Between the parts of a key. They are strings, so that a key can be read.
_AGAIN, _NAMED, _END = "(again)", "(named)", "(end)"
_NOTHING: Final = object()
_NULL_TYPE: Final = 0  # its number
_OF_BINARIES: Final = ["left", "right", "operator", "modifiers", "type"]
_PLAIN_NAMES: Final = "string boolean operator plain_obj anon_name type"
_ELEMENT_NAMES: Final = """has_cache_key clauseelement clauseelement_list clauseelement_tuple memoized_select_entities dml_values
    clauseelement_tuples multi_list string_clauseelement_dict prefix_sequence setup_join_tuple plain_dict string_list"""
_PLAIN: Final = frozenset(InternalTraversal[f"dp_{name}"] for name in _PLAIN_NAMES.split())
_WALKED: Final = _PLAIN | {InternalTraversal[f"dp_{name}"] for name in _ELEMENT_NAMES.split()}
_NOTES: Final = (InternalTraversal.dp_propagate_attrs, InternalTraversal.dp_annotations_key)


class ForeignElement(Exception):
    """An element whose key is SQLAlchemy's to make."""


class Met(dict[Any, int]):
    """What was met in one statement, by address or by anonymous name, numbered in that order."""

    __slots__ = ()

    def __missing__(self, new: Any) -> int:
        number = self[new] = len(self)
        return number


Walk = Callable[[Any, Key, Met, Literals], None]  # puts a value into a key; raises ForeignElement
Traversal = list[tuple[str, InternalTraversal]]
Plan = tuple[tuple[str, Any, "_Walks"], ...]  # attribute, the value with which it need not be visited, how others are walked


class _Walks(dict[type, Walk]):
    """Class of a value → how it is walked, found out when the first of the class is met."""

    def __init__(self, choose: Callable[[type], Walk]) -> None:
        super().__init__()
        self._choose = choose

    def __missing__(self, kind: type) -> Walk:
        found = self[kind] = self._choose(kind)
        return found


class StructureKeys:
    """Makes keys of statements, on one thread; they may be compared with each other."""

    def __init__(self) -> None:
        self.atoms: dict[int, int] = {}  # address of a table or column -> its number
        self.types: dict[int, int] = {}  # address of a column type -> its number
        self._atoms_kept: list[Any] = []
        self._types_kept: list[Any] = []
        self._numbers: dict[Any, int] = {(NullType,): _NULL_TYPE}  # SQLAlchemy's key of one of these -> our number
        self._walks = _Walks(self._walk_of)
        self._notes = _Walks(self._walk_of_note)  # of what an element has of the class that it belongs to
        self._others = _Walks(self._walk_of_other)

    def structure_of(self, statement: Any) -> Structure | None:
        """The structure of a statement; None where even SQLAlchemy cannot tell it from the values."""
        key: Key = []
        literals: Literals = []
        try:
            self._walks[type(statement)](statement, key, Met(), literals)
        except ForeignElement:
            return structure_by_sqlalchemy(statement)
        return tuple(key), literals

    def _walk_of(self, kind: Any) -> Walk:
        """How values of a class are walked: elements by what SQLAlchemy says of their class, and what elements are made of."""
        made_by = getattr(kind, "_gen_cache_key", None)
        if made_by is BindParameter._gen_cache_key and kind.__dict__.get("inherit_cache"):
            return self._walk_of_literals(kind)
        if kind is Column:
            return self._walk_of_columns()
        if made_by is not HasCacheKey._gen_cache_key and issubclass(kind, HasCacheKey):
            return self._walk_atom
        if issubclass(kind, HasCacheKey):
            traversal = _traversal_of(kind)
            if traversal is None:
                return _refuse
            if kind is BinaryExpression and [name for name, _ in traversal] == _OF_BINARIES:
                return self._walk_of_binaries()
            return self._walk_by_plan(kind, traversal)
        if issubclass(kind, TypeEngine):
            return self._walk_type
        if issubclass(kind, tuple | list):
            return self._walk_elements
        if issubclass(kind, Mapping):
            return self._walk_items
        return _walk_label if issubclass(kind, _anonymous_label) else _walk_member if issubclass(kind, Enum) else _walk_plain

    def _walk_of_note(self, kind: Any) -> Walk:
        """The values in it are no part of SQLAlchemy's key, so what could hold some is left to SQLAlchemy."""
        if issubclass(kind, ClauseElement):
            return _refuse
        return (
            self._walk_atom if issubclass(kind, HasCacheKey) else self._walk_notes if issubclass(kind, Mapping) else _walk_plain
        )

    def _walk_of_other(self, _kind: type) -> Walk:
        """Attributes of kinds that have no place here have to be empty."""
        return _refuse_unless_empty

    # -- tables, columns and types

    def _walk_atom(self, atom: Any, key: Key, _met: Met, _literals: Literals) -> None:
        """A table, column of a table, or mapper of a class is one number."""
        number = self.atoms.get(id(atom))
        key.append(self._add_atom(atom) if number is None else number)

    def _add_atom(self, atom: Any) -> int:
        numbers = anon_map()
        key = atom._gen_cache_key(numbers, [])
        if NO_CACHE in numbers or len(self.atoms) >= ATOMS_MAX or not (isinstance(atom, Table | Column) or key == (atom,)):
            raise ForeignElement
        number = self.atoms[id(atom)] = self._number_of(key)
        self._atoms_kept.append(atom)
        return number

    def _walk_type(self, type_: Any, key: Key, _met: Met, _literals: Literals) -> None:
        key.append(self._number_of_type(type_))

    def _number_of_type(self, type_: Any) -> int:
        if type(type_) is NullType:  # of each value that is inserted, a new one
            return _NULL_TYPE
        number = self.types.get(id(type_))
        if number is None:
            if len(self.types) >= TYPES_MAX:
                self.types.clear()
                self._types_kept.clear()
            number = self.types[id(type_)] = self._number_of(type_._static_cache_key)
            self._types_kept.append(type_)
        return number

    def _number_of(self, key: Any) -> int:
        if key is NO_CACHE or len(self._numbers) >= ATOMS_MAX:
            raise ForeignElement
        try:
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:
            raise ForeignElement from None

    # -- elements

    def _walk_of_columns(self) -> Walk:
        number_of, walk_atom = self.atoms.get, self._walk_atom
        walk_other = self._walk_by_plan(Column, _traversal_of(Column) or [])

        def walk(column: Any, key: Key, met: Met, literals: Literals) -> None:
            number = number_of(id(column))
            if number is not None:
                key.append(number)
                return
            table = column.table
            permanent = type(table) is Table and table.columns.get(column.key) is column
            (walk_atom if permanent else walk_other)(column, key, met, literals)

        return walk

    def _walk_of_literals(self, kind: type) -> Walk:
        number_of, number_of_type = self.types.get, self._number_of_type

        def walk(literal: Any, key: Key, met: Met, literals: Literals) -> None:
            address = id(literal)
            if address in met:
                key += (_AGAIN, met[address])
                return
            met[address] = len(met)
            literals.append(literal)
            type_ = literal.type
            number = number_of(id(type_))
            if number is None:
                number = number_of_type(type_)
            name = literal._anon_map_key
            if name is None or name in met or literal.required or literal.expanding or literal.literal_execute:
                # Whether a value is there at all is no part of SQLAlchemy's key.
                key += (_NAMED, literal.key if name is None else met[name])
                key += (literal.literal_execute, literal.required, literal.expanding)
            else:
                met[name] = len(met)
            key += (kind, number)

        return walk

    def _walk_of_binaries(self) -> Walk:
        """The same as by a plan, for the most common class: it saves a tenth of the time of a key."""
        atom_of, number_of, walks = self.atoms.get, self.types.get, self._walks

        def walk(element: Any, key: Key, met: Met, literals: Literals) -> None:
            address = id(element)
            if address in met:
                key += (_AGAIN, met[address])
                return
            met[address] = len(met)
            left, right, modifiers, type_ = element.left, element.right, element.modifiers, element.type
            number = number_of(id(type_))
            key += (BinaryExpression, self._number_of_type(type_) if number is None else number, element.operator)
            if modifiers:
                key.append(tuple(sorted(modifiers.items())))
            atom = atom_of(id(left))
            if atom is None:
                walks[type(left)](left, key, met, literals)
            else:
                key.append(atom)
            walks[type(right)](right, key, met, literals)

        return walk

    def _walk_by_plan(self, kind: type, traversal: Traversal) -> Walk:
        plans: dict[tuple[str, ...], Plan] = {}

        def walk(element: Any, key: Key, met: Met, literals: Literals) -> None:
            address = id(element)
            if address in met:
                key += (_AGAIN, met[address])
                return
            met[address] = len(met)
            names = (*element.__dict__,)
            plan = plans.get(names)
            if plan is None:
                if len(plans) >= PLANS_MAX:
                    plans.clear()
                plan = plans[names] = tuple(self._plan_of(kind, traversal, frozenset(names)))
            key.append(kind)
            for name, default, walks in plan:
                value = getattr(element, name)
                if value is not default:
                    key.append(name)
                    walks[type(value)](value, key, met, literals)
            key.append(_END)

        return walk

    def _plan_of(self, kind: type, traversal: Traversal, present: frozenset[str]) -> Iterable[tuple[str, Any, _Walks]]:
        """The attributes to visit of those elements of a class that have set these."""
        for name, visit in traversal:
            default = getattr_static(kind, name, _NOTHING)
            computed = hasattr(type(default), "__get__")
            if name not in present:
                if visit is InternalTraversal.dp_dialect_options or (default is not _NOTHING and not computed):
                    continue  # it is empty, or that of the class
                if default is _NOTHING or visit not in _PLAIN:
                    raise ForeignElement
            default = None if computed or default is _NOTHING else default
            yield name, default, self._walks if visit in _WALKED else self._notes if visit in _NOTES else self._others

    # -- what elements are made of

    def _walk_elements(self, elements: Any, key: Key, met: Met, literals: Literals) -> None:
        walks = self._walks
        key.append(len(elements))
        for element in elements:
            walks[type(element)](element, key, met, literals)

    def _walk_items(self, values: Any, key: Key, met: Met, literals: Literals) -> None:
        walks = self._walks
        key.append(len(values))
        for name, value in values.items():
            walks[type(name)](name, key, met, literals)
            walks[type(value)](value, key, met, literals)

    def _walk_notes(self, values: Any, key: Key, met: Met, literals: Literals) -> None:
        key.append(len(values))
        for name in sorted(values):
            key.append(name)
            self._notes[type(values[name])](values[name], key, met, literals)


def _walk_plain(value: Any, key: Key, _met: Met, _literals: Literals) -> None:
    key.append(value)


def _walk_label(name: Any, key: Key, met: Met, _literals: Literals) -> None:
    key.append(name.apply_map(met))


def _walk_member(member: Any, key: Key, _met: Met, _literals: Literals) -> None:
    key.append(member._name_)  # an enum's own hash is a function of Python


def _refuse(*_: object) -> NoReturn:
    raise ForeignElement


def _refuse_unless_empty(value: Any, *_: object) -> None:
    if value is None or value:
        raise ForeignElement


def _traversal_of(kind: Any) -> Traversal | None:
    """Attributes that SQLAlchemy has in the keys of a class; None: it has no keys."""
    if kind.__dict__.get("inherit_cache"):
        inherited = getattr(kind, "_cache_key_traversal", None)
        found = kind._traverse_internals if inherited is None else inherited
    else:
        found = kind.__dict__.get("_cache_key_traversal")
        found = kind.__dict__.get("_traverse_internals") if found is None else found
    return found if isinstance(found, list) else None


def structure_by_sqlalchemy(statement: Any) -> Structure | None:
    """The structure of a statement by SQLAlchemy's own key."""
    generate = getattr(statement, "_generate_cache_key", None)
    cached = None if generate is None else generate()
    if cached is None:
        return None
    literals = cached.bindparams
    # Whether a value is there at all is no part of SQLAlchemy's key.
    return (cached.key, tuple([(bind.required, bind.expanding) for bind in literals])), literals
