"""The way of a reader through an in-place recovery, taken from a real run: `python -m tests.project.recovery_walk [--all]`.

The first partition of a stopped node starts from a snapshot, the second one from its state file. `cmdlog recover DIR` runs in
this process on two such nodes: on the first so that everything is imported, on the second one it is watched, from the command's
function to its end. Each function counts once, at its first call, in the order of these calls; functions of one module in a row
are one visit.

    station   a module that is visited
    return    a visit to a module that was visited before
    climb     a visit by a call from below: the module's layer is above the caller's, or one of its functions is waiting
              for the caller

Walked are `cmdlog.cli`, `cmdlog.node`, `replay` and `snapshot`: a reader takes the layers below them at their word. A function
that calls no other walked module is read where it is called, so only `--all` counts it: property, constructor, leaf. In a loop
over records it is the data that decides what is called first, so there the calls of one module count as one visit.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from unittest.mock import patch

import pytest

from cmdlog.cli.app import run
from cmdlog.cli.directory.recover import recover
from replay.log.scan import scan
from replay.loop import ReplayLoop
from tests.replay.rig import Rig

ROOT: Final = Path(__file__).parents[2]
LAYERS: Final = ("cmdlog/cli/", "cmdlog/node/", "replay/", "snapshot/")  # from above; what is below is not walked
BEGIN: Final = recover
LOOPS: Final = {scan.__code__, ReplayLoop.run.__code__}  # over records


@dataclass(frozen=True, slots=True)
class Visit:
    """Functions of one module, called for the first time one after the other."""

    module: str  # path of the file
    functions: tuple[str, ...]
    is_climb: bool

    def shown(self, met: Sequence[str]) -> str:
        """One line; `met` are the modules of the visits before."""
        kind = "climb " if self.is_climb else "return" if self.module in met else "      "
        return f"{kind} {self.module:44} {', '.join(self.functions)}"


@dataclass(frozen=True, slots=True)
class Walk:
    """The visits in their order."""

    visits: tuple[Visit, ...]

    @property
    def stations(self) -> int:
        return len({visit.module for visit in self.visits})

    @property
    def returns(self) -> int:
        return len(self.visits) - self.stations

    @property
    def climbs(self) -> int:
        return sum(visit.is_climb for visit in self.visits)

    def shown(self) -> str:
        """A line for each visit, and the figures."""
        modules = [visit.module for visit in self.visits]
        lines = [visit.shown(modules[:at]) for at, visit in enumerate(self.visits)]
        return "\n".join([*lines, f"{self.stations} stations, {self.returns} returns, {self.climbs} climbs"])


@dataclass(slots=True)
class FirstCall:
    """A function at its first call."""

    module: str
    function: str
    is_climb: bool
    in_loop: bool  # called for a record of a loop over records
    leads_on: bool = False  # some call of it called another module that is walked


def watch_recovery() -> list[FirstCall]:
    """Recovers a node and reports the walked functions in the order of their first calls."""
    with tempfile.TemporaryDirectory() as folder:
        _recover(_make_node(Path(folder, "first")))
        directory = _make_node(Path(folder, "second"))
        return _calls_of(lambda: _recover(directory))


def walk_of(calls: Iterable[FirstCall], *, walk_all: bool) -> Walk:
    """The visits of these calls, without those that lead nowhere unless `walk_all`."""
    return Walk(tuple(_visits(call for call in calls if walk_all or call.leads_on)))


def _make_node(folder: Path) -> str:
    folder.mkdir()
    rig = Rig(folder)
    for partition in range(rig.partitions):
        rig.deposits(6)
        rig.snapshot(partition)
    rig.deposits(6)
    rig.close()
    rig.forget_state(0)
    return rig.directory


def _recover(directory: str) -> None:
    with patch.object(sys, "argv", ["cmdlog", "recover", directory]), redirect_stdout(StringIO()):
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code


def _calls_of(work: Callable[[], None]) -> list[FirstCall]:
    """The walked functions that the command calls, in the order of their first calls."""
    met: dict[CodeType, FirstCall] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not (module := _module(code)) or _is_nameless(code):
            return
        callers = [caller for caller in _callers(frame) if caller in met or caller is BEGIN.__code__]
        if not callers and code is not BEGIN.__code__:
            return
        if callers and met[callers[0]].module != module:
            met[callers[0]].leads_on = True
        if code not in met:
            is_climb = bool(callers) and _is_climb(module, [met[caller].module for caller in callers])
            in_loop = not LOOPS.isdisjoint((code, *callers))
            met[code] = FirstCall(module, code.co_qualname.replace(".<locals>", ""), is_climb, in_loop)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(met.values())


def _is_climb(module: str, callers: Sequence[str]) -> bool:
    """Whether the nearest of these callers lies below the module."""
    return callers[0] != module and (_layer(module) < _layer(callers[0]) or module in callers)


def _callers(frame: FrameType) -> Iterator[CodeType]:
    """From the nearest to the farthest."""
    caller = frame.f_back
    while caller is not None:
        yield caller.f_code
        caller = caller.f_back


def _module(code: CodeType) -> str:
    """Path of the module that holds the code; "" when it is not walked."""
    path = code.co_filename.removeprefix(f"{ROOT}/")
    return path if path.startswith(LAYERS) else ""


def _is_nameless(code: CodeType) -> bool:
    """A lambda, a comprehension, or the body of a class or module: it is read where it stands."""
    return code.co_name.startswith("<") or not code.co_flags & inspect.CO_NEWLOCALS or not code.co_flags & inspect.CO_OPTIMIZED


def _layer(module: str) -> int:
    """0 is the highest one."""
    return next(at for at, folder in enumerate(LAYERS) if module.startswith(folder))


def _visits(calls: Iterable[FirstCall]) -> Iterator[Visit]:
    """Calls of one module in a row, together; also where a loop begins or ends between them."""
    ordered: list[FirstCall] = []
    for in_loop, stretch in groupby(calls, key=lambda call: call.in_loop):
        found = list(stretch)
        if in_loop:
            modules = [call.module for call in found]
            found.sort(key=lambda call: modules.index(call.module))
        ordered += found
    for _, visit in groupby(ordered, key=lambda call: call.module):
        yield _visit_of(list(visit))


def _visit_of(calls: Sequence[FirstCall]) -> Visit:
    return Visit(calls[0].module, tuple(call.function for call in calls), any(call.is_climb for call in calls))


if __name__ == "__main__":
    print(walk_of(watch_recovery(), walk_all="--all" in sys.argv).shown())
