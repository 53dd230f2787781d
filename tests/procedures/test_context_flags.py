"""A flag is up inside of its block alone, however that ends."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar

from procedures.wire.context_flags import raised


def test_a_flag_is_as_it_was_afterwards() -> None:
    """Also after an error, and around another block."""
    flag = ContextVar("flag", default=False)
    with raised(flag):
        with raised(flag):
            assert flag.get()
        assert flag.get()
    with contextlib.suppress(KeyError), raised(flag):
        raise KeyError
    assert not flag.get()
