"""What a node checks of itself while it serves: states after a kill, restores by drills, and all that lies on the disk.

One rule: none of it is on the path of a call, and each runs in a process of low priority.
"""

from __future__ import annotations

from dataclasses import dataclass

from cmdlog.node.background.drill_scheduler import DrillScheduler
from cmdlog.node.background.page_checks import PageChecks
from cmdlog.node.scrub.scrubber import Scrubber


@dataclass(frozen=True, slots=True)
class SelfChecks:
    """The node's checks."""

    pages: PageChecks
    drills: DrillScheduler
    scrub: Scrubber

    def start(self) -> None:
        """Begins all that the settings want."""
        for check in (self.drills, self.pages, self.scrub):
            check.start()

    def stop(self) -> None:
        """Ends what is under way; harmless at any step."""
        for check in (self.drills, self.pages, self.scrub):
            check.stop()
