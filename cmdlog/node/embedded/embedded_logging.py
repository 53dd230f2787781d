"""How a program that opens a node inside itself gets its log events: through the standard library's logging, and by default none.

One rule: a library writes nothing to standard output or standard error on its own. The logger is `cmdlog` and those below it;
`logging.basicConfig()` or a handler of the program shows them. Who has configured structlog, which these lines come from, has
said what becomes of them: nothing is changed then.
"""

from __future__ import annotations

import logging

import structlog


def log_as_library() -> None:
    """Sends the lines to the standard library's logging. Idempotent."""
    logger = logging.getLogger("cmdlog")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # else Python writes warnings to standard error
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
