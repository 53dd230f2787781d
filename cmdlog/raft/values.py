"""Values that are made per message.

One rule: a value is never changed. `@value` lets the type checker hold it, and only the type checker: a frozen dataclass costs
1.3 to 2 us to make, four times a plain one, and several are made for every entry that is proposed by itself. What is made rarely
stays a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A dataclass with slots, compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
