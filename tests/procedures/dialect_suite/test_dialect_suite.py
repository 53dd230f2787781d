"""SQLAlchemy's own suite for dialects, against `tx`: its classes, under names that pytest collects.

A test of it that is new, and fails, fails here; what must fail is listed in `not_run.py`.
"""

from __future__ import annotations

from tests.procedures.dialect_suite.conftest import PREFIX
from tests.procedures.dialect_suite.suite_classes import suite_classes

globals().update({f"{PREFIX}{name}": cls for name, cls in suite_classes()})
