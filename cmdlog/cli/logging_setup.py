"""Lines about the server's own running, on standard error: JSON elsewhere than on a terminal.

One rule: no parameters and no secrets; what is logged are names, numbers and reasons. As text, no value of a line can do anything
in a terminal, or begin a line: lines of a traceback stand under a margin.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal

import structlog

from cmdlog.cli.output import visible_lines, visible_values
from cmdlog.wal.system.line_queue import queue_output

MARGIN: Final = "  "


def configure_logs(log_format: Literal["auto", "json", "text"]) -> None:
    """Sets up structlog, and the standard library's logging through it; from now on no line waits for who reads it."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    queue_output("stdout", "stderr", as_json=not as_text)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
        if not as_text
        else structlog.processors.format_exc_info,
    ]
    last: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if as_text:
        last = [_show_traceback, _make_visible, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # ours reports its start and stop
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # malformed requests are the clients' affair
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it describes a context per partition, and its plugins
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _show_traceback(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """That of a procedure is a value of its event; as text it is written in lines, like that of an exception."""
    if "traceback" in event and "exception" not in event:
        event["exception"] = event.pop("traceback")
    return event


def _make_visible(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """JSON escapes what a terminal could obey; here that is left to do. What is no text is shown by its `repr`."""
    trace = event.pop("exception", None)
    shown: structlog.typing.EventDict = visible_values({name: value for name, value in event.items() if type(value) is str})
    event.update(shown)
    if trace:
        event["exception"] = MARGIN + visible_lines(str(trace), MARGIN)
    return event
