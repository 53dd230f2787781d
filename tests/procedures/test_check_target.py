"""What is checked, by name or by object."""

from __future__ import annotations

import pytest

from procedures import Database
from procedures.checks.check_target import resolve_target
from procedures.errors import BundleError
from procedures.samples import bank
from tests.node.apps import voter


def test_database_object_finds_its_module() -> None:
    """A Database can be given instead of its name, and a module whose `db` it is."""
    assert resolve_target(bank.db) == ("procedures.samples.bank:db", bank.db)
    assert resolve_target("tests.node.apps.voter")[1] is voter.db


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Database("loose"), "not an attribute of an imported module"),
        ("no_such_module:db", "cannot be imported"),
        ("procedures.samples.bank:nothing", "is no Database"),
    ],
)
def test_what_is_no_application_is_named(target: str | Database, why: str) -> None:
    """An object that no module holds, a module or an attribute that is not there."""
    with pytest.raises(BundleError, match=why):
        resolve_target(target)
