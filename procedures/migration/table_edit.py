"""One table under change: edits of its CREATE text, and the statements that lead there.

One rule: what SQLite's ALTER TABLE does in place is done in place; everything else is one rewrite, however many edits it holds.

    CREATE TABLE _cmdlog_new_x (…)          the new text
    INSERT INTO _cmdlog_new_x SELECT …      all rows, in the order of the old key
    DROP TABLE x; ALTER TABLE … RENAME TO x; CREATE INDEX …

The texts are our own (`declaration.schema.create_table`), with what SQLite's ALTER made of them: regular enough to be edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from procedures.declaration.create_text import (
    ColumnText,
    constraint_name,
    constraint_words,
    names_in_parentheses,
    names_of,
    parse_table,
    quoted,
)
from procedures.declaration.schema_plan import index_table
from procedures.errors import DefinitionError
from procedures.storage.authorizer import NEW_TABLE


class TableEdit:
    """Edits of one table that become one step."""

    def __init__(self, create: str, schema: Mapping[str, str]) -> None:
        self._before = self.table = parse_table(create)
        self._indexes = {name: sql for name, sql in schema.items() if index_table(sql) == self.table.name}
        self._values = {name: quoted(name) for name in self.table.column_names}  # column -> SQL of its value, from the old row
        self._in_place: list[str] = []
        self._rewrites = False

    def column(self, name: str) -> ColumnText:
        """Raises: DefinitionError."""
        found = self.table.column(name)
        if found is None:
            raise DefinitionError(
                f"table {self.table.name!r} has no column {name!r}; it has {', '.join(self.table.column_names)}"
            )
        return found

    def add_column(self, column: ColumnText, constraints: Sequence[str]) -> None:
        """The rows that exist get its default."""
        if self.table.column(column.name) is not None:
            raise DefinitionError(f"table {self.table.name!r} has a column {column.name!r} already")
        self.table = replace(
            self.table, columns=(*self.table.columns, column), constraints=(*self.table.constraints, *constraints)
        )
        if constraints or column.generated or (column.not_null and not column.default):
            self._rewrites = True
        self._in_place.append(f"ALTER TABLE {quoted(self.table.name)} ADD COLUMN {column.text}")

    def drop_column(self, name: str) -> None:
        """With the constraints and indexes that are of this column alone."""
        self.column(name)
        # Refused: a column of the key, of a constraint with others, or of another column. What is of it alone goes with it.
        if name in self.table.primary_key:
            raise DefinitionError(
                f"column {self.table.name}.{name} belongs to the primary key; give the table another one first, with "
                "op.create_primary_key"
            )
        columns = tuple(column for column in self.table.columns if column.name != name)
        kept = [text for text in self.table.constraints if name not in _columns_of(text)]
        for text in self.table.constraints:
            others = (_columns_of(text) & set(self.table.column_names)) - {name}
            if name in _columns_of(text) and others:
                raise DefinitionError(f"column {self.table.name}.{name} is used in <{text}>; drop that constraint first")
        for column in columns:
            if name in names_of(column.text) - {column.name}:
                raise DefinitionError(f"column {self.table.name}.{name} is used by column <{column.text}>; drop that first")
        self._rewrites |= len(kept) != len(self.table.constraints)
        for index, sql in list(self._indexes.items()):
            if name in names_of(sql.partition("(")[2]):
                self._in_place.append(f"DROP INDEX {quoted(index)}")
                del self._indexes[index]
        self.table = replace(self.table, columns=columns, constraints=tuple(kept))
        self._values.pop(name, None)
        self._in_place.append(f"ALTER TABLE {quoted(self.table.name)} DROP COLUMN {quoted(name)}")

    def change_column(self, column: ColumnText, value: str = "") -> None:
        """The column of that name as it is here; `value`: SQL of its value, from the old row, where that changes."""
        before = self.column(column.name)
        if before.key != column.key:
            self._rewrites = True
            self.table = self.table.with_column(column)
        if value and column.name in self._values:
            if self._values[column.name] != quoted(column.name):
                raise DefinitionError(f"column {column.name!r}: two changes of its type in one batch; make two of them")
            self._rewrites = True
            self._values[column.name] = value

    def add_constraint(self, text: str) -> None:
        """Raises: DefinitionError for a name that is taken."""
        name = constraint_name(text)
        if name and any(constraint_name(known) == name for known in self.table.constraints):
            raise DefinitionError(f"table {self.table.name!r} has a constraint {name!r} already")
        self._rewrites = True
        self.table = replace(self.table, constraints=(*self.table.constraints, text))

    def replace_constraint(self, text: str, by: str) -> None:
        """One that says the same of values that are stored in another form."""
        self.table = replace(self.table, constraints=tuple(by if known is text else known for known in self.table.constraints))

    @property
    def indexes(self) -> Mapping[str, str]:
        """Name → CREATE INDEX, as they will be."""
        return dict(self._indexes)

    def replace_index(self, name: str, statement: str) -> None:
        """One that says the same of values that are stored in another form; the table is written again for them."""
        self._indexes[name] = statement

    def drop_constraint(self, name: str) -> None:
        """Raises: DefinitionError for the primary key, and for a name that no constraint has."""
        by_name = {self._name_of(at): text for at, text in enumerate(self.table.constraints)}
        if name not in by_name:
            known = ", ".join(sorted(by_name))
            raise DefinitionError(f"table {self.table.name!r} has no constraint {name!r}; its constraints are {known}")
        if constraint_words(by_name[name])[0] == "PRIMARY":
            raise DefinitionError(
                f"table {self.table.name!r} cannot be without a primary key; op.create_primary_key gives it another one"
            )
        self._rewrites = True
        self.table = replace(self.table, constraints=tuple(text for text in self.table.constraints if text is not by_name[name]))

    def change_primary_key(self, text: str, options: str) -> None:
        """The columns of the key are NOT NULL from then on."""
        constraints = [known for known in self.table.constraints if constraint_words(known)[0] != "PRIMARY"]
        for name in names_in_parentheses(text):
            column = self.column(name)
            if not column.not_null:
                self.change_column(replace(column, text=f"{column.text} NOT NULL"))
        self._rewrites = True
        self.table = replace(self.table, constraints=(text, *constraints), options=options)

    def statements(self) -> list[str]:
        """SQL that does all of it; [] when nothing changes."""
        if not self._rewrites:
            return self._in_place
        name, new = self.table.name, NEW_TABLE + self.table.name
        written = [column.name for column in self.table.columns if column.name in self._values and not column.generated]
        columns, values = ", ".join(map(quoted, written)), ", ".join(self._values[column] for column in written)
        return [
            self.table.create(new),
            f"INSERT INTO {quoted(new)} ({columns}) SELECT {values} FROM {quoted(name)}",  # noqa: S608 - names of the schema
            f"DROP TABLE {quoted(name)}",
            f"ALTER TABLE {quoted(new)} RENAME TO {quoted(name)}",
            *self._indexes.values(),
        ]

    def _name_of(self, at: int) -> str:
        """A constraint's name; where it was given none, the one that conventions give it."""
        text = self.table.constraints[at]
        if name := constraint_name(text):
            return name
        kind = {"PRIMARY": "pk", "UNIQUE": "uq", "FOREIGN": "fk", "CHECK": "ck"}[constraint_words(text)[0]]
        columns = [] if kind == "pk" else [str(at)] if kind == "ck" else names_in_parentheses(text)
        return "_".join([kind, self.table.name, *columns])


def _columns_of(text: str) -> set[str]:
    """Names that a constraint of a table could mean as columns of that table."""
    words = constraint_words(text)
    return names_of(text) if words[0] == "CHECK" else set(names_in_parentheses(text))
