"""Whether a bundle can be served, found out in a process of its own: it imports, declares tables, and repeats itself.

One rule: code that was not checked never runs in the node. An import that hangs, exits or fills memory ends the child alone.

The digest run is that of `cmdlog check`, on the bundle's own modules, if there is a `workload` beside its Database. Code that was
typed at a prompt, or that belongs to this framework, has no modules that could be put into a folder: it has no digest run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from cmdlog.child_process import PIPE, ChildProcess, describe_end
from cmdlog.node.deploying.deploy_errors import BundleRefused
from cmdlog.whole_line_stdout import answer, find_answer
from procedures.checks.check import check
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import ProceduresError
from procedures.execution.hash_seed import PINNED
from procedures.execution.outcome_bodies import MAIN
from procedures.source.own_modules import FRAMEWORK

CHECK_S_MAX: Final = 300.0  # imports, and two digest runs on a machine that serves calls meanwhile
DIGEST_CALLS: Final = 512
NICENESS: Final = 15  # calls come first
RULES: Final = frozenset(("double_run", "divergence"))  # findings of `check` that mean: a replay would differ


def check_bundle(bundle: Bundle, *, database: str) -> None:
    """Blocking. `database` is the name that the directory belongs to. Raises: BundleRefused."""
    with ChildProcess("cmdlog.node.deploying.bundle_check", hash_seed=PINNED, stdin=bundle.to_bytes(), stdout=PIPE) as child:
        if (ended := child.finish(patience_s=CHECK_S_MAX)) is None:
            raise BundleRefused(f"the check of bundle {bundle.hash[:12]} did not end within {CHECK_S_MAX:g} s")
        report = find_answer(ended.output, "database", "problem")
        if report is None:
            why = child.last_error() or describe_end(ended.code)
            raise BundleRefused(f"bundle {bundle.hash[:12]} of {bundle.target} ended its check: {why}")
    if problem := report["problem"]:
        raise BundleRefused(problem)
    if report["database"] != database:
        raise BundleRefused(
            f"the directory belongs to database {database!r}, the bundle to {report['database']!r}",
            hint="nothing changed; deploy the application that the directory was created for",
        )


def find_problem(bundle: Bundle) -> tuple[str, str]:
    """Name of the bundle's database, and why it cannot be served ("" when it can)."""
    try:
        database = load_bundle(bundle)
        database.schema_statements()
    except ProceduresError as error:
        return "", str(error)
    return database.name, _find_difference(bundle)


def _find_difference(bundle: Bundle) -> str:
    """What the digest run finds; "" when both runs agree, or there is nothing to run."""
    module = bundle.target.partition(":")[0]
    if module == MAIN or module.partition(".")[0] in FRAMEWORK:
        return ""
    with tempfile.TemporaryDirectory(prefix="cmdlog-deploy-") as folder:
        write_modules(bundle, Path(folder))
        sys.path.insert(0, folder)
        found = [finding for finding in check(bundle.target, calls=DIGEST_CALLS) if finding.code in RULES]
    return "; ".join(f"{finding.code}: {finding.message}" for finding in found)


def write_modules(bundle: Bundle, folder: Path) -> None:
    """The bundle's modules as files, so that other processes import them."""
    for name, source in bundle.modules.items():
        parts: Sequence[str] = name.split(".")
        path = folder.joinpath(*parts, "__init__.py") if name in bundle.packages else folder.joinpath(*parts).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


def main() -> None:
    """Entry point: a bundle on standard input, an object on standard output."""
    os.nice(NICENESS)
    try:
        database, problem = find_problem(Bundle.from_bytes(sys.stdin.buffer.read()))
    except Exception as error:  # noqa: BLE001 - whatever the application does is why it is refused
        database, problem = "", f"{type(error).__name__}: {error}"
    sys.stdout.flush()
    answer(b"\n" + orjson.dumps({"database": database, "problem": problem}) + b"\n")
