"""The node's machine is what the driver drives; its leadership is what the driver reports to."""

from __future__ import annotations

import inspect

import pytest

from cmdlog.cluster.replicated_machine import Machine, Watcher
from cmdlog.member.leading.leadership import Leadership
from cmdlog.member.sequenced_machine import SequencedMachine


@pytest.mark.parametrize(("kind", "protocol"), [(SequencedMachine, Machine), (Leadership, Watcher)])
def test_it_has_what_the_driver_calls(kind: type, protocol: type) -> None:
    """Every method of the protocol, with its parameters by name."""
    wanted = {name: member for name, member in vars(protocol).items() if not name.startswith("_")}
    assert wanted
    for name, member in wanted.items():
        found = inspect.getattr_static(kind, name)
        if inspect.isfunction(member):
            assert list(inspect.signature(found).parameters) == list(inspect.signature(member).parameters), name
