"""`cmdlog call` reads parameters by their types."""

from typing import Any

import pytest

from cmdlog.cli.call import read_params
from cmdlog.cli.failure import CommandFailed

PROPERTIES: dict[str, Any] = {
    "count": {"type": "integer"},
    "name": {"type": "string"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "size": {"enum": ["small", 2]},
    "big": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ([], {}),
        (["count=7"], {"count": 7}),
        (["name=7"], {"name": "7"}),
        (["name="], {"name": ""}),
        (["name=a=b"], {"name": "a=b"}),
        (["note=null"], {"note": None}),
        (["note=none"], {"note": "none"}),
        (['tags=["a", "b"]', "big=true"], {"tags": ["a", "b"], "big": True}),
        (["size=small"], {"size": "small"}),
        (["size=2"], {"size": 2}),
    ],
)
def test_value_is_read_by_its_type(given: list[str], params: dict[str, Any]) -> None:
    """Text is taken as it is, everything else as JSON."""
    assert read_params(given, PROPERTIES) == params


@pytest.mark.parametrize("given", [["count"], ["count=seven"], ["cuont=7"], ["count=1", "count=2"], ["tags=[a]"]])
def test_misfit_is_a_usage_error(given: list[str]) -> None:
    """A parameter that cannot be meant ends with exit code 2 before anything is sent."""
    with pytest.raises(CommandFailed) as refused:
        read_params(given, PROPERTIES)
    assert refused.value.exit_code == 2
