"""Keys of statements by their structure: equal for two statements exactly where SQLAlchemy's cache keys are, and cheaper.

SQLAlchemy describes class by class what belongs to a key (`_traverse_internals`). It builds nested tuples with a number for each
element, and asks each element for every attribute that its class may have. Here one list is filled:

- a table, and a column of a table, is one number;
- of other elements only those attributes are visited that this one has set: its plan, found by the names in its `__dict__`;
- an element has a number only where it comes again, and an anonymous name likewise.

A key holds no address. The addresses in `StructureKeys` are of objects that it keeps alive, so none can be that of another one.
What is not known here, a class that makes its own key or an attribute of a rare kind, leaves the whole statement to SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from inspect import getattr_static
from typing import Any, Final, NoReturn

from sqlalchemy import Table
from sqlalchemy.schema import Column
from sqlalchemy.sql.cache_key import NO_CACHE, HasCacheKey
from sqlalchemy.sql.elements import BinaryExpression, BindParameter
from sqlalchemy.sql.sqltypes import NullType
from sqlalchemy.sql.visitors import InternalTraversal, anon_map

from procedures.statements.structure_attributes import (
    END,
    PLAIN_KINDS,
    ForeignElement,
    Key,
    Literals,
    Met,
    Walk,
    sorted_items,
    walk_of_attribute,
)

ATOMS_MAX: Final = 1 << 14  # tables and their columns, and column types that differ; statements with more are SQLAlchemy's
PLANS_MAX: Final = 4096  # a class has one for each set of attributes that its elements have
TYPES_MAX: Final = 1024  # objects; calls make them, as in cast(x, Numeric(10, 2)), so they are not kept for ever

Structure = tuple[Hashable, Literals]  # key, and values in an order that is the same for all statements with this key

# Between the parts of a key. They are strings, so that a key can be read.
_AGAIN, _NAMED = "(again)", "(named)"
_NOTHING: Final = object()
_NULL_TYPE: Final = 0  # its number
_OF_BINARIES: Final = ["left", "right", "operator", "modifiers", "type"]


Traversal = list[tuple[str, InternalTraversal]]
Plan = tuple[tuple[str, Any, Walk], ...]  # attribute, the value with which it need not be visited, how it is


class StructureKeys:
    """Makes keys of statements, on one thread; they may be compared with each other."""

    def __init__(self) -> None:
        self.atoms: dict[int, int] = {}  # address of a table or column -> its number
        self.types: dict[int, int] = {}  # address of a column type -> its number
        self._atoms_kept: list[Any] = []
        self._types_kept: list[Any] = []
        self._numbers: dict[Any, int] = {(NullType,): _NULL_TYPE}  # SQLAlchemy's key of one of these -> our number
        self._walks: dict[type, Walk] = {}
        self.walk = self._make_walk()

    def structure_of(self, statement: Any) -> Structure | None:
        """The structure of a statement; None where even SQLAlchemy cannot tell it from the values."""
        key: Key = []
        literals: Literals = []
        try:
            self.walk(statement, key, Met(), literals)
        except ForeignElement:
            return structure_by_sqlalchemy(statement)
        return tuple(key), literals

    def number_of_type(self, type_: Any) -> int:
        """Raises: ForeignElement."""
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

    def add_atom(self, atom: Any) -> int:
        """From now on this table, column of a table, or mapper of a class is one number. Raises: ForeignElement."""
        numbers = anon_map()
        key = atom._gen_cache_key(numbers, [])
        if NO_CACHE in numbers or len(self.atoms) >= ATOMS_MAX or not (isinstance(atom, Table | Column) or key == (atom,)):
            raise ForeignElement
        number = self.atoms[id(atom)] = self._number_of(key)
        self._atoms_kept.append(atom)
        return number

    def number_of_atom(self, atom: Any) -> int:
        """Raises: ForeignElement."""
        number = self.atoms.get(id(atom))
        return self.add_atom(atom) if number is None else number

    def _number_of(self, key: Any) -> int:
        if key is NO_CACHE or len(self._numbers) >= ATOMS_MAX:
            raise ForeignElement
        try:
            return self._numbers.setdefault(key, len(self._numbers))
        except TypeError:
            raise ForeignElement from None

    def _make_walk(self) -> Walk:
        number_of, walk_of = self.atoms.get, self._walks.get

        def walk(element: Any, key: Key, met: Met, literals: Literals) -> None:
            address = id(element)
            number = number_of(address)
            if number is not None:
                key.append(number)
            elif address in met:
                key += (_AGAIN, met[address])
            else:
                met[address] = len(met)
                walk_this = walk_of(type(element))
                if walk_this is None:
                    walk_this = self._walks[type(element)] = self._walk_of(type(element))
                walk_this(element, key, met, literals)

        return walk

    def _walk_of(self, kind: Any) -> Walk:
        """How elements of a class are walked."""
        made_by = getattr(kind, "_gen_cache_key", None)
        if made_by is BindParameter._gen_cache_key and kind.__dict__.get("inherit_cache"):
            return _of_literals(self, kind)
        if made_by is not HasCacheKey._gen_cache_key and issubclass(kind, HasCacheKey):
            return _of_atoms(self)
        traversal = _traversal_of(kind) if issubclass(kind, HasCacheKey) else None
        if traversal is None:
            return _refuse
        if kind is BinaryExpression and [name for name, _ in traversal] == _OF_BINARIES:
            return _of_binaries(self)
        by_plan = _by_plan(self, kind, traversal)
        return _of_columns(_of_atoms(self), by_plan) if kind is Column else by_plan


def _of_literals(keys: StructureKeys, kind: type) -> Walk:
    number_of = keys.types.get

    def walk(literal: Any, key: Key, met: Met, literals: Literals) -> None:
        literals.append(literal)
        type_ = literal.type
        number = number_of(id(type_))
        if number is None:
            number = keys.number_of_type(type_)
        name = literal._anon_map_key
        if name is None or name in met or literal.required or literal.expanding or literal.literal_execute:
            # Whether a value is there at all is no part of SQLAlchemy's key.
            key += (_NAMED, literal.key if name is None else met[name])
            key += (literal.literal_execute, literal.required, literal.expanding)
        else:
            met[name] = len(met)
        key += (kind, number)

    return walk


def _of_binaries(keys: StructureKeys) -> Walk:
    atom_of, number_of, walk_element = keys.atoms.get, keys.types.get, keys.walk

    def walk(element: Any, key: Key, met: Met, literals: Literals) -> None:
        left, modifiers, type_ = element.left, element.modifiers, element.type
        atom, number = atom_of(id(left)), number_of(id(type_))
        if number is None:
            number = keys.number_of_type(type_)
        key += (BinaryExpression, number, element.operator)
        if modifiers:
            key.append(sorted_items(modifiers))
        if atom is None:
            walk_element(left, key, met, literals)
        else:
            key.append(atom)
        walk_element(element.right, key, met, literals)

    return walk


def _of_atoms(keys: StructureKeys) -> Walk:
    def walk(atom: Any, key: Key, met: Met, _: Literals) -> None:
        del met[id(atom)]  # an atom never says that it comes again
        key.append(keys.add_atom(atom))

    return walk


def _of_columns(of_atoms: Walk, otherwise: Walk) -> Walk:
    def walk(column: Any, key: Key, met: Met, literals: Literals) -> None:
        table = column.table
        permanent = type(table) is Table and table.columns.get(column.key) is column
        (of_atoms if permanent else otherwise)(column, key, met, literals)

    return walk


def _by_plan(keys: StructureKeys, kind: type, traversal: Traversal) -> Walk:
    plans: dict[tuple[str, ...], Plan] = {}

    def walk(element: Any, key: Key, met: Met, literals: Literals) -> None:
        names = (*element.__dict__,)
        plan = plans.get(names)
        if plan is None:
            if len(plans) >= PLANS_MAX:
                plans.clear()
            plan = plans[names] = tuple(_plan_of(keys, kind, traversal, frozenset(names)))
        key.append(kind)
        for name, default, walk_attribute in plan:
            value = getattr(element, name)
            if value is not default:
                walk_attribute(value, key, met, literals)
        key.append(END)

    return walk


def _plan_of(keys: StructureKeys, kind: type, traversal: Traversal, present: frozenset[str]) -> Iterable[tuple[str, Any, Walk]]:
    """The attributes to visit of those elements of a class that have set these."""
    for name, visit in traversal:
        default = getattr_static(kind, name, _NOTHING)
        computed = hasattr(type(default), "__get__")
        if name not in present:
            if visit is InternalTraversal.dp_dialect_options or (default is not _NOTHING and not computed):
                continue  # it is empty, or that of the class
            if default is _NOTHING or visit not in PLAIN_KINDS:
                raise ForeignElement
        default = None if computed or default is _NOTHING else default
        yield name, default, walk_of_attribute(keys, name, visit, default)


def _refuse(*_: object) -> NoReturn:
    raise ForeignElement


def _traversal_of(kind: Any) -> Traversal | None:
    """Which attributes SQLAlchemy has in the keys of a class; None: it has no keys."""
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
