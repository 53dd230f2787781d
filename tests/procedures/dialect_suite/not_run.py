"""What of SQLAlchemy's own suite `tx` does not do, and why: the one list.

Every test that is named here runs as well, and must fail with the exception that is stated. One that passes fails the suite, and
so does an entry that names no test. Only the modules of `MODULES_NOT_RUN` are left out.

An entry is `Class` (all its tests), `Class::test` (with all its parameters) or `Class::test[parameters]`; `*` is any text. The
first one that means a test counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from sqlalchemy.exc import InvalidRequestError, NoInspectionAvailable, NoSuchModuleError, OperationalError

from procedures.errors import DefinitionError, StatementRefused

MODULES_NOT_RUN: Final = {
    "test_ddl": "a procedure makes no tables: they are declared, and the node creates them",
    "test_reflection": "a procedure reads no schema: the tables are those that are declared",
    "test_table_via_select": "a procedure makes no tables and no views",
}

REQUIREMENTS_REFUSED: Final = {
    "schemas": "a state has one schema",
    "denormalized_names": "SQLite keeps the case of names",
    "json_deserializer_binary": "JSON is read by orjson, which an application does not replace",
}


@dataclass(frozen=True, slots=True)
class NotRun:
    """Tests that must fail, and what they fail with."""

    reason: str
    raises: type[Exception] | tuple[type[Exception], ...]
    tests: tuple[str, ...]


@cache
def _pattern(entry: str) -> re.Pattern[str]:
    return re.compile(re.escape(entry).replace(r"\*", ".*") + r"((::|\[).*)?", re.DOTALL)


NOT_RUN: Final = (
    # What a procedure is given: tx, and no Engine, Connection, Session or cursor.
    NotRun(
        "there is no Engine to create, and so no isolation level, no autocommit and no event of one",
        (NoSuchModuleError, InvalidRequestError, AttributeError, AssertionError),
        (
            "AutocommitIsolationTest::test_autocommit_block",
            "AutocommitIsolationTest::test_autocommit_on",
            "AutocommitIsolationTest::test_dialect_*",
            "AutocommitIsolationTest::test_turn_*",
            "FutureWeCanSetDefaultSchemaWEventsTest",
            "IsolationLevelTest",
            "JSONTest::test_round_trip_custom_json",
            "PingTest",
            "PostCompileParamsTest::test_execute*",
            "WeCanSetDefaultSchemaWEventsTest",
        ),
    ),
    NotRun(
        "results are lists, read to the end: no cursor stays open on a server",
        (NoSuchModuleError, AssertionError),
        ("ServerSideCursorsTest",),
    ),
    NotRun(
        "a result has no cursor: neither its lastrowid nor whether it is closed",
        AttributeError,
        (
            "InsertBehaviorTest::test_autoclose_on_insert",
            "InsertBehaviorTest::test_autoclose_on_insert_implicit_returning",
            "InsertBehaviorTest::test_empty_insert",
            "InsertBehaviorTest::test_empty_insert_multiple",
        ),
    ),
    NotRun(
        "SQL text is given as text(), not to a driver",
        AttributeError,
        (
            "FetchLimitOffsetTest::test_limit_offset_nobinds",
            "JSONLegacyStringCastIndexTest",
            "NameDenormalizeTest::test_cols_driver_cols[*driver_sql]",
            "RowCountTest::test_raw_sql_rowcount",
        ),
    ),
    NotRun("there is no Session", AttributeError, ("JSONTest::test_eval_none_flag_orm",)),
    NotRun("a procedure reads no schema: the tables are those that are declared", NoInspectionAvailable, ("HasSequenceTest",)),
    NotRun(
        "SQLite has no sequences",
        (DefinitionError, NotImplementedError),
        ("SequenceTest", "SequenceCompilerTest::test_literal_binds_inline_compile"),
    ),
    # Statements and parameters.
    NotRun(
        "literal_execute: every value is bound, and what differs in values alone is compiled once",
        (StatementRefused, DefinitionError),
        ("*Test::test_literal*", "*Test::test_render_literal_*", "JSONTest::*[_decimal*]"),
    ),
    NotRun(
        "a parameter that the statement does not have is a mistake of the caller, and refused",
        TypeError,
        ("ReturningGuardsTest::test_delete_single", "RowCountTest::test_non_rowcount_scenarios_no_raise[*-delete]"),
    ),
    NotRun(
        "RETURNING with a list of dicts returns the rows; these tests want it refused",
        AttributeError,
        ("ReturningGuardsTest::test_delete_many", "ReturningGuardsTest::test_update_many"),
    ),
    NotRun(
        "only an INSERT of one row has an inserted_primary_key; SQLAlchemy gives (None,)",
        InvalidRequestError,
        ("InsertBehaviorTest::test_insert_from_select_autoinc", "InsertBehaviorTest::test_insert_from_select_autoinc_no_rows"),
    ),
    NotRun(
        "SQLite has no FETCH; limit() does what it has in common with it",
        StatementRefused,
        ("FetchLimitOffsetTest::test_*fetch*",),
    ),
    NotRun(
        "SQLite has no regular expressions",
        StatementRefused,
        ("LikeFunctionsTest::test_not_regexp_match", "LikeFunctionsTest::test_regexp_*"),
    ),
    NotRun(
        "SQLite has no parentheses around the parts of a UNION; a subquery is one",
        (StatementRefused, OperationalError),
        (
            "CompoundSelectTest::test_limit_offset_in_unions_from_alias",
            "CompoundSelectTest::test_limit_offset_selectable_in_unions",
            "CompoundSelectTest::test_order_by_selectable_in_unions",
        ),
    ),
    NotRun("SQLite gives no names to the columns of VALUES", OperationalError, ("ValuesExpressionTest",)),
    NotRun("SQLite deletes by one table", NotImplementedError, ("CTETest::test_delete_from_round_trip",)),
    NotRun("DISTINCT ON belongs to PostgreSQL", NoSuchModuleError, ("DistinctOnTest",)),
    NotRun(
        "SQLite would silently take equal texts for a RANGE of so many days",
        StatementRefused,
        ("WindowFunctionTest::test_window_range_dates",),
    ),
    # Declarations.
    NotRun("a state has one schema", DefinitionError, ("SameNamedSchemaTableTest",)),
    NotRun(
        "names of tables are ASCII: they are in every log, export and metric",
        DefinitionError,
        ("PercentSchemaNamesTest", "UnicodeSchemaTest"),
    ),
    NotRun("SQLite has no GENERATED ALWAYS for a number", DefinitionError, ("IdentityColumnTest",)),
    NotRun("SQLite has no arrays", DefinitionError, ("ArrayTest",)),
    NotRun("a pickle depends on the versions of Python and of the code", TypeError, ("BinaryTest::test_pickle_roundtrip",)),
    # Times.
    NotRun(
        "a DateTime has a zone: without one it is another moment on each machine",
        TypeError,
        ("DateTimeHistoricTest::test_round_trip_years*",),
    ),
    NotRun(
        "a Date is no DateTime: nothing is cut off silently",
        TypeError,
        (
            "DateTimeCoercedToDateTimeTest::test_null_bound_comparison",
            "DateTimeCoercedToDateTimeTest::test_round_trip",
            "DateTimeCoercedToDateTimeTest::test_round_trip_decorated",
        ),
    ),
    NotRun("a time of day without its date has no place in UTC", DefinitionError, ("TimeTZTest",)),
    NotRun(
        "times are text, so they are compared in SQL, and computed in Python",
        (StatementRefused, DefinitionError),
        ("IntervalTest::test_arithmetic_*", "PrecisionIntervalTest::test_arithmetic_*"),
    ),
    # Exact numbers.
    NotRun(
        "an exact number has up to 18 digits, and decimals that are known when the statement is compiled",
        (StatementRefused, DefinitionError),
        (
            *(f"JSONTest::test_index_cross_casts[*allowed_targets{at}-numeric]" for at in (2, 3, 4, 6, *range(10, 17))),
            "JSONTest::test_*_typed_*[numeric*",
            "NumericTest::test_enotation_decimal_large",
            "NumericTest::test_many_significant_digits",
            "TrueDivTest::test_floordiv_numeric",
            "TrueDivTest::test_truediv_divisor[numeric*",
            "TrueDivTest::test_truediv_numeric",
        ),
    ),
    NotRun(
        "a Numeric is a Decimal and a Float is a float, on the way in and out",
        (DefinitionError, TypeError),
        (
            "NumericTest::test_float_as_decimal",
            "NumericTest::test_float_custom_scale",
            "NumericTest::test_numeric_as_decimal",
            "NumericTest::test_numeric_as_float",
            "NumericTest::test_numeric_null_as_float",
            "ReturningTest::test_insert_w_floats[*type_4*",
        ),
    ),
    NotRun(
        "a Float has 53 binary digits, and takes no precision", DefinitionError, ("ReturningTest::test_insert_w_floats[*type_3*",)
    ),
)


def entry_of(test: str) -> tuple[NotRun, str] | None:
    """What is listed of a test, given as `Class::test[parameters]`, and by which entry."""
    return next(((listed, entry) for listed in NOT_RUN for entry in listed.tests if _pattern(entry).fullmatch(test)), None)
