"""How many connections the process may have, by its limit of open files.

One rule: clients never use up what the node itself needs to open: a log that cannot open its next segment is worse than a client
that is rejected. The limit is raised to what the settings ask for; where that is not allowed, there are fewer connections.
"""

from __future__ import annotations

import resource
from typing import Final

import structlog

from cmdlog.node.settings import BadSetting, Settings

RESERVED: Final = 256  # for log, snapshots, sites, queries and Python itself
RESERVED_PER_PARTITION: Final = 16
CONNECTIONS_LEAST: Final = 16  # with fewer a server is of no use

logger = structlog.get_logger("cmdlog.api")


def connections_allowed(settings: Settings) -> int:
    """`connections_max`, or fewer where the process may not open as many files. Raises: BadSetting.

    Raises the soft limit of open files as far as this needs.
    """
    reserved = RESERVED + RESERVED_PER_PARTITION * settings.partitions
    wanted = settings.connections_max + reserved
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (wanted if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    if soft < wanted and soft < hard:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    allowed = min(settings.connections_max, soft - reserved)
    if allowed < min(CONNECTIONS_LEAST, settings.connections_max):
        least = reserved + min(CONNECTIONS_LEAST, settings.connections_max)
        raise BadSetting(
            "connections_max",
            f"the process may open {soft} files (ulimit -n), and {reserved} are kept for the node",
            hint=f"raise the limit: `ulimit -n {wanted}`, or {least} at least",
        )
    if allowed < settings.connections_max:
        logger.warning("connections_limited", connections_max=allowed, open_files_max=soft, kept_for_the_node=reserved)
    return allowed
