"""The dialects that code bundles state: the rules by which an application's declarations, results and statements are read.

One rule: a bundle is loaded by the rules of its time, so its calls replay as they ran. Each number has the rules of those before
it and one more. The first one is not written down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from procedures.declaration.database import Database
from procedures.declaration.grouped_operands import operands_ungrouped
from procedures.declaration.hash_slots import keys_unjudged
from procedures.declaration.joined_bytes import bytes_as_numbers
from procedures.declaration.stored_forms import forms_unchecked
from procedures.numeric.numeric_types import ignoring_arguments, numeric_as_text
from procedures.shown_values import values_shown
from procedures.wire.result_json import encode_any, results_of_first_types

TEXT_NUMERIC: Final = 1  # Numeric is text
EXACT_NUMERIC: Final = 2  # Numeric(p, s) is an exact integer
TYPED_ANY: Final = 3  # and results without an exact annotation may hold times and models
STORED_FORMS: Final = 4  # and no statement mixes what is stored in different forms
COUNTED_ARGUMENTS: Final = 5  # and rounding a Numeric ignores no argument
JOINED_BYTES: Final = 6  # and + and || join bytes
JUDGED_KEYS: Final = 7  # and no statement looks for a key of another partition
GROUPED_OPERANDS: Final = 8  # and an operand that is a comparison has brackets, and a value that is a buffer is no bytes
HIDDEN_VALUES: Final = 9  # and no text of an error shows a value of a row; and keys are judged that queries and VALUES give
KNOWN: Final = (
    TEXT_NUMERIC, EXACT_NUMERIC, TYPED_ANY, STORED_FORMS, COUNTED_ARGUMENTS, JOINED_BYTES, JUDGED_KEYS, GROUPED_OPERANDS,
    HIDDEN_VALUES,
)  # fmt: skip


def dialect_of(db: Database) -> int:
    """For a database that was loaded from a bundle, that of a bundle with the same rules.

    Bundles of applications that a dialect before `JUDGED_KEYS` does not concern keep their hash; those from there on concern all.
    """
    if not db.dialect.is_exact:
        return TEXT_NUMERIC
    if not db.shows_values:
        return HIDDEN_VALUES
    if db.dialect.groups_operands:
        return GROUPED_OPERANDS
    if db.dialect.judges_keys:
        return JUDGED_KEYS
    if db.dialect.joins_bytes:
        return JOINED_BYTES
    if not db.dialect.ignores_arguments:
        return COUNTED_ARGUMENTS
    if db.dialect.checks_forms:
        return STORED_FORMS
    return TYPED_ANY if any(procedure.encode is encode_any for procedure in db.procedure_list) else EXACT_NUMERIC


@contextlib.contextmanager
def rules_of(dialect: int) -> Iterator[None]:
    """What is declared inside is read by the rules of the dialect."""
    with contextlib.ExitStack() as then:
        if dialect < HIDDEN_VALUES:
            then.enter_context(values_shown())
        if dialect < GROUPED_OPERANDS:
            then.enter_context(operands_ungrouped())
        if dialect < JUDGED_KEYS:
            then.enter_context(keys_unjudged())
        if dialect < JOINED_BYTES:
            then.enter_context(bytes_as_numbers())
        if dialect < COUNTED_ARGUMENTS:
            then.enter_context(ignoring_arguments())
        if dialect < STORED_FORMS:
            then.enter_context(forms_unchecked())
        if dialect < TYPED_ANY:
            then.enter_context(results_of_first_types())
        if dialect < EXACT_NUMERIC:
            then.enter_context(numeric_as_text())
        yield
