"""New code, loaded by the processes that are to run it before anything of it is logged.

One rule: a start logs no code that a replay could not load, and needs no further process to find out. The sites of a node load it
before they hear of the states, and keep it. A program that executes its calls itself has it loaded by a process that then ends
(`load_check`). A start whose code the log has tries nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cmdlog.node.deploying.load_check import NotReplayable, check_loads, own_folders
from cmdlog.node.settings import Settings
from cmdlog.node.sites.site_child import NotStarted, SiteChild, await_first
from cmdlog.node.sites.supervisor import spread
from procedures.code.bundle import Bundle, bundle_of
from procedures.errors import BundleError

NO_FOLDER: Final = "/"  # where a module's relative paths lead nowhere, on a machine that gives no temporary folder


class CodeTrial:
    """Of one start. What was tried and not taken ends with the block."""

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self._hash = ""  # of the bundle that the sites have
        self._sites: list[SiteChild] = []  # by number, those that nobody has taken

    def __enter__(self) -> CodeTrial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, bundle: Bundle, settings: Settings) -> None:
        """Blocking; nothing is done again. Raises: NotReplayable; NotStarted or OSError where no process is to be had."""
        if self._inline:
            check_loads(bundle, settings.start_timeout_s)
        elif bundle.hash != self._hash:
            self._load_in_sites(bundle, settings)
            self._hash = bundle.hash

    def load_added(self, bundle: Bundle, catalogs: Mapping[Any, Mapping[str, Any]], settings: Settings) -> None:
        """The same, of code whose modules are in no version that the log has; `catalogs`: the values of their records.

        Modules that it has are not judged again, where only rules of this framework make another version of them.
        """
        known = catalogs.values()
        if all(value["hash"] != bundle.hash for value in known) and not any(_has_modules(value, bundle) for value in known):
            self.load(bundle, settings)

    def take_site(self, number: int, partitions: Sequence[int]) -> SiteChild:
        """The site of this number, which has loaded the code, or a new one. Raises: OSError."""
        if not self._sites:
            return SiteChild.spawn(number, partitions)
        site = self._sites.pop(0)
        site.assign(number, partitions)
        return site

    def close(self) -> None:
        """Idempotent."""
        while self._sites:
            self._sites.pop().discard()

    def _load_in_sites(self, bundle: Bundle, settings: Settings) -> None:
        self.close()
        for number, group in enumerate(spread(settings.sites, settings.partitions)):
            self._sites.append(SiteChild.spawn(number, group))
        with _empty_folder() as empty:
            order = {"bundle": bundle.to_bytes().decode(), "own_folders": own_folders(bundle), "empty": empty}
            for site in self._sites:
                site.try_code(order)
            for number in range(len(self._sites)):
                if problem := self._await_trial(number, order, bundle, settings.start_timeout_s):
                    raise NotReplayable(problem)

    def _await_trial(self, number: int, order: dict[str, Any], bundle: Bundle, timeout_s: float) -> str:
        """Why the site cannot load the bundle."""
        try:
            return await_first(
                self._sites, number, partial(SiteChild.try_code, order=order), lambda site: site.wait_tried(timeout_s)
            )
        except NotStarted as error:
            if error.fault.kind == "died" and (why := self._sites[number].ended_by_import()):
                raise NotReplayable(f"bundle {bundle.hash[:12]} of {bundle.target} ended its import: {why}") from None
            raise


def _has_modules(value: Mapping[str, Any], bundle: Bundle) -> bool:
    with contextlib.suppress(BundleError):
        return bundle_of(int(value.get("version", 0)), value).modules == bundle.modules
    return False


@contextlib.contextmanager
def _empty_folder() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        folder = NO_FOLDER
        with contextlib.suppress(OSError):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cmdlog-load-", ignore_cleanup_errors=True))
        yield folder
