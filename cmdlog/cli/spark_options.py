"""How a command gets a Spark session: the options that choose where it runs, and starting it.

One rule: what is missing on this machine is reported in a sentence, before a job has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cmdlog.cli.cli_errors import CommandFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from replay.spark.session import Tuning

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="M",
        envvar="SPARK_MASTER",
        help="Spark master (spark://HOST:PORT, yarn, k8s://…, local[N,4]); by default all cores of this machine.",
    ),
]
ConfOption = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; may be repeated.")]


def spark_session(master: str | None, tuning: Tuning = "throughput", conf: Sequence[str] | None = None) -> SparkSession:
    """Raises: what `check_session` raises; JavaMissing, NoSession."""
    settings = check_session(master, conf)
    from replay.spark.session import session

    _keep_quiet()
    return session(master=master, tuning=tuning, conf=settings)


def check_session(master: str | None, conf: Sequence[str] | None) -> dict[str, str]:
    """The settings of a session that can start.

    Raises: CommandFailed when Spark is not installed or a setting is malformed; MasterSilent.
    """
    pairs = [pair.partition("=") for pair in conf or ()]
    if strange := [key for key, equals, _ in pairs if not (key and equals)]:
        raise CommandFailed(f"--conf takes KEY=VALUE, not {strange[0]!r}", exit_code=2)
    try:
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError:
        hint = "pip install 'cmdlog[spark]', and 'cmdlog[spark-java]' on a machine without Java"
        raise CommandFailed("Spark is not installed", hint=hint) from None
    from replay.spark.session import check_master

    check_master(master or "")
    return {key: value for key, _, value in pairs}


def _keep_quiet() -> None:
    """py4j also logs what it raises: a command that is ended from outside would show tracebacks with its error."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_interruption)  # logged by py4j to the root


def _is_no_interruption(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, KeyboardInterrupt)
