"""The statements of one connection, each ready to run: a dict from statement to a closure.

A procedure's hot path is that one lookup; what can be decided once (order of parameters, row type, which tables it touches) is
decided when a statement, or one of its form, is met first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import apsw
from sqlalchemy import Update

from procedures.declaration.columns.column_defaults import Make
from procedures.declaration.procedure import Access
from procedures.errors import StatementRefused
from procedures.statements.allowed_tables import AllowedTables, MigratedTables
from procedures.statements.changes import Result, inserted_class
from procedures.statements.compiled import Compiled, compile_statement
from procedures.statements.pinned_keys import KeyJudge
from procedures.statements.prepared import (
    PreparedText,
    Run,
    check_names,
    find_numbered,
    marking_run,
    misfit_error,
    numbering_run,
    reading_run,
    writing_run,
)
from procedures.statements.rows import rows_class
from procedures.statements.statement_forms import (
    StatementForm,
    ValueKinds,
    may_choose_columns,
    value_kinds,
    with_values_named,
)
from procedures.statements.structure_keys import Structure, StructureKeys
from procedures.storage.authorizer import Authorizer, Mode, probe

if TYPE_CHECKING:
    from procedures.declaration.database import Database
    from procedures.native.accelerator import Statements
    from procedures.statements.call_state import CallState

STATEMENTS_MAX = 4096  # per procedure class; code that builds statements per call must not eat the memory
FOUND_PER_LOOK = 16  # a reference to each statement that a call builds would cost more than the look for its form
RECENT_MAX = 16  # statements that were found last: a call that runs some in a loop finds each of them at once
TEXTS_MAX = 64  # of one statement with lists, by their lengths


@dataclass(slots=True)
class _Recent:
    """A statement of the running batch."""

    run: Run
    found: int = 0  # how often it was met again


class Runs(dict[object, Run]):
    """Statement → closure that runs it on one connection, for the procedures of one database with one kind of access.

    `runs[statement]` is the whole hot path. It holds statements that live longer than a call, and those without a form.

    Attributes:
        recent: statements of the running batch; emptied when its calls are over, so that nothing keeps one that a call has built.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        cursor: apsw.Cursor,
        guard: Authorizer,
        state: CallState,
        *,
        statements: Statements | None = None,
        keys: KeyJudge | None = None,
    ) -> None:
        """`keys`: judges the statements of calls that see one partition of several."""
        super().__init__()
        self._key_judge = keys
        self._statements = statements
        self._allowed = (
            MigratedTables(database, cursor.connection, guard) if access is Access.MIGRATION else AllowedTables(database, access)
        )
        self._cursor = cursor
        self._guard = guard
        self._state = state
        self.tx: Any = None  # the transaction that runs statements now
        self._keys = StructureKeys()
        self._forms: dict[Any, tuple[ValueKinds, dict[Any, StatementForm]]] = {}  # by structure, then by kinds of values
        self._met: WeakKeyDictionary[object, Any] = WeakKeyDictionary()  # statement -> the call in which it was met first
        self._alone: dict[object, StatementForm] = {}  # statements that share no form
        self.recent: dict[object, _Recent] = {}

    def __missing__(self, statement: Any) -> Run:
        if (recent := self.recent.pop(statement, None)) is not None:
            self.recent[statement] = recent  # the last again: of too many the first is dropped
            recent.found += 1
            if recent.found % FOUND_PER_LOOK == 0:
                self._keep_if_met(statement, recent.run)
            return recent.run
        form, values = self._form_of(statement)
        run = partial(_run_with_values, form, values) if values else form.run
        form.found += 1
        if form.found % FOUND_PER_LOOK == 0 or statement in self._alone:
            self._keep_if_met(statement, run)
        if len(self.recent) >= RECENT_MAX:
            del self.recent[next(iter(self.recent))]
        self.recent[statement] = _Recent(run)
        return run

    def _keep_if_met(self, statement: Any, run: Run) -> None:
        """A statement that lives longer than a call is found by itself, once two calls were looked at that run it."""
        if statement in self._alone or self._met.setdefault(statement, self._state.call) != self._state.call:
            if len(self) >= STATEMENTS_MAX:
                self.clear()
            self[statement] = run

    def run_with_names(self, statement: Any, params: dict[str, Any]) -> Result:
        """Runs a statement whose closure has raised `NamesDiffer`: an INSERT or UPDATE of the columns that are named.

        Raises: TypeError for names that are not the statement's.
        """
        form, values = self._form_of(statement)
        given = values | params
        run = self._choose_columns(form, frozenset(params) - values.keys())
        if run is None:
            raise misfit_error(form.compiled, given)
        form.add_columns(frozenset(given), run)
        self.recent.pop(statement, None)
        if statement in self and not values:
            self[statement] = form.run
        return run(given)

    def values_of(self, statement: Any) -> dict[str, Any]:
        """The values that a statement holds itself, by the names of their parameters; none of one that SQLite does not take."""
        try:
            return self._form_of(statement)[1]
        except apsw.Error:
            return {}

    @property
    def connection(self) -> apsw.Connection:
        """On which they run."""
        return self._cursor.connection

    def forget_statements(self) -> None:
        """What was found out about tables may no longer hold."""
        for known in (self, self._forms, self._alone, self.recent):
            known.clear()

    def run_control(self, sql: str) -> None:
        """Runs transaction control of ours while a procedure's turn is on."""
        self._guard.mode = Mode.FRAMEWORK
        try:
            self._cursor.execute(sql)
        finally:
            self._guard.mode = Mode.PROCEDURE

    def _form_of(self, statement: Any) -> tuple[StatementForm, dict[str, Any]]:
        """The form of a statement, and the values that it holds itself."""
        if statement in self._alone:
            return self._alone[statement], {}
        structure = self._keys.structure_of(statement)
        if structure is None:
            return self._form_alone(statement, compile_statement(statement)), {}
        key, literals = structure
        known = self._forms.get(key)  # one look: such keys are long
        form = None if known is None else known[1].get(known[0].kinds_of(literals) if known[0].counts else ())
        if form is None:
            form = self._shared_form(statement, structure)
            if statement in self._alone:
                return form, {}
        return form, form.values_of(literals) if form.places else {}

    def _shared_form(self, statement: Any, structure: Structure) -> StatementForm:
        key, literals = structure
        compiled = compile_statement(statement)
        named = with_values_named(compiled, literals)
        kinds = value_kinds(statement, compiled, literals)
        if named is None or -1 in kinds.exactly:
            return self._form_alone(statement, compiled)
        shared, places = named
        form = StatementForm(statement if may_choose_columns(statement) else None, shared, self._prepare(shared), places)
        known = self._forms.setdefault(key, (kinds, {}))[1]
        for table in (self._forms, known):
            if len(table) > STATEMENTS_MAX:
                table.pop(next(iter(table)))
        known[kinds.kinds_of(literals)] = form
        return form

    def _form_alone(self, statement: Any, compiled: Compiled) -> StatementForm:
        form = StatementForm(statement, compiled, self._prepare(compiled), ())
        if len(self._alone) >= STATEMENTS_MAX:
            self._alone.clear()
        self._alone[statement] = form
        return form

    def _choose_columns(self, form: StatementForm, names: frozenset[str]) -> Run | None:
        """The run that sets the columns with these names; None where names choose none.

        Raises: TypeError, see `misfit_error`.
        """
        statement = form.statement
        if not may_choose_columns(statement) or (isinstance(statement, Update) and not names):
            return None
        try:
            compiled = compile_statement(statement, column_keys=sorted(names))
        except StatementRefused:
            return None
        if compiled.required != names:
            raise misfit_error(replace(form.compiled, required=compiled.required), dict.fromkeys(names))
        if not form.places:
            return self._prepare(compiled)
        structure = self._keys.structure_of(statement)
        named = None if structure is None else with_values_named(compiled, structure[1])
        if named is None:
            return None
        shared, places = named
        return _renaming(self._prepare(shared), {place: name for name, place in form.places}, places)

    def _prepare(self, compiled: Compiled) -> Run:
        run = self._prepare_text(compiled, compiled.sql) if compiled.expand is None else self._expanding(compiled)
        return self._making(run, compiled.made) if compiled.made else run

    def _making(self, run: Run, made: tuple[tuple[str, Make], ...]) -> Run:
        """For columns whose default is a function: called once for each execution, in the order of the columns."""

        def run_making(params: dict[str, Any]) -> Result:
            tx = self.tx
            return run({name: make(tx) for name, make in made if name not in params} | params)

        return run_making

    def _prepare_text(self, compiled: Compiled, sql: str) -> Run:
        connection = self._cursor.connection
        facts = probe(connection, self._guard, sql)
        self._allowed.check_statement(compiled, facts)
        pins = () if self._key_judge is None else self._key_judge.placed_pins(sql, facts.parameters)
        prepared = PreparedText(self._cursor, compiled, sql, facts.parameters, self._state, self._statements, pins)
        numbered = None if facts.readonly else find_numbered(connection, self._guard, sql)
        if facts.columns:
            run = reading_run(prepared, rows_class(facts.columns, compiled.places))
            if facts.readonly:
                return run
            run = marking_run(run, self._state)
        else:
            key = compiled.inserted
            inserted = None if key is None else inserted_class(key.names, key.values, key.numbered)
            run = writing_run(prepared, inserted)
        return run if numbered is None else numbering_run(self._cursor, run, numbered, compiled, facts.parameters)

    def _expanding(self, compiled: Compiled) -> Run:
        """A list inside IN (…): text by its length, each prepared once."""
        expand = compiled.expand
        if expand is None:
            raise AssertionError("only called for statements with lists")
        by_text: dict[str, Run] = {}
        rendered = expand.escaped_bind_names

        def run(params: dict[str, Any]) -> Result:
            check_names(compiled, params)
            state = expand.construct_expanded_state(params, escape_names=False)
            values = {rendered.get(name, name): value for name, value in state.parameters.items()}
            text = state.statement
            found = by_text.get(text)
            if found is None:
                found = by_text[text] = self._prepare_text(compiled.expanded(text, values), text)
                if len(by_text) > TEXTS_MAX:
                    by_text.pop(next(iter(by_text)))
            for name, processor in {**compiled.binds, **state.processors}.items():  # the latter are of the lists alone
                if name in values and processor is not None:
                    values[name] = processor(values[name])
            return found(values)

        return run


def _run_with_values(form: StatementForm, values: dict[str, Any], params: dict[str, Any]) -> Result:
    return form.run(values | params if params else values)


def _renaming(run: Run, names: dict[int, str], places: tuple[tuple[str, int], ...]) -> Run:
    """The values of a statement may have other names where it sets other columns."""
    changed = {name: names[place] for name, place in places if names.get(place, name) != name}
    if not changed:
        return run

    def run_renamed(params: dict[str, Any]) -> Result:
        moved = {name: params[known] for name, known in changed.items()}
        return run({name: value for name, value in params.items() if name not in changed.values()} | moved)

    return run_renamed
