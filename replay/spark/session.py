"""A Spark session inside this process, with settings that fit the command log.

One rule: what was there before wins. A session that runs already is used, a cluster's own settings (`spark-submit`,
SPARK_CONF_DIR, PYSPARK_PYTHON) stay, and the environment of this process is as before on return: only the JVM that is started
gets ours.

Why the settings are as they are:
- times are UTC everywhere, since Spark would shift them by the zone of the machine;
- `local[N,4]`: plain `local[N]` never tries a failed task again;
- loopback only, no web page: an embedded session is nobody else's business;
- Python workers run this interpreter;
- the folder that holds `pyspark_cmdlog` is on the path of the JVM's Pythons, where Spark looks for `format("cmdlog")`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from replay.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
DRIVER_MEMORY: Final = "1g"  # a rebuild takes 0.45 GB of it, a sort of five million calls passed with it
DISCOVERY_FOLDER: Final = Path(__file__).parent / "discover"
Tuning = Literal["throughput", "start"]
_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the CPU until the first result, less throughput after it
_LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.context.name = SQLQueryContextLogger
logger.context.level = off
"""


def session(
    name: str = "cmdlog",
    *,
    master: str | None = None,
    scratch: str | None = None,
    driver_memory: str = DRIVER_MEMORY,
    worker_memory: str | None = None,
    tuning: Tuning = "throughput",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one. `conf` wins over everything that is set here.

    `worker_memory` limits the Pythons of an executor, so that one gets a MemoryError before the machine runs short; Spark then
    writes a line about it for each task, so it is for those who need it. `scratch` takes shuffle files and the warehouse; by
    default a temporary folder that is removed at exit. `tuning` "start" is for short-lived sessions.

    Raises: JavaMissing.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second, which a command's help does not need

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings: dict[str, str] = {"spark.sql.session.timeZone": "UTC", "spark.app.name": name}
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, whose JVM is there already and knows its cluster
    environment: dict[str, str] = {}
    if not submitted:
        scratch = scratch or _temporary()
        master = master or os.environ.get("SPARK_MASTER") or MASTER
        settings |= _embedded(master, scratch, tuning, driver_memory, worker_memory)
        environment = _environment(master, scratch, tuning)
    builder = SparkSession.Builder()
    for key, value in (settings | dict(conf or {})).items():
        builder = builder.config(key, value)
    with _changed(environment):
        return builder.getOrCreate()


def _embedded(master: str, scratch: str, tuning: Tuning, driver_memory: str, worker_memory: str | None) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": driver_memory,
        "spark.local.dir": os.path.join(scratch, "local"),
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if worker_memory is not None:
        settings["spark.executor.pyspark.memory"] = worker_memory
    if tuning == "start":
        settings["spark.driver.extraJavaOptions"] = _START
    return settings


def _environment(master: str, scratch: str, tuning: Tuning) -> dict[str, str]:
    """What the JVM inherits. What the user has set stays."""
    ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": _conf_folder(scratch)}
    if master.startswith("local"):
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    if tuning == "start":
        ours["SPARK_LAUNCHER_OPTS"] = _START  # of the small JVM that puts the command line of the large one together
    ours = {key: os.environ.get(key) or value for key, value in ours.items()}
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(DISCOVERY_FOLDER), str(Path(__file__).parents[2])]
    ours["PYTHONPATH"] = os.pathsep.join([*folders, inherited] if inherited else folders)
    ours["JAVA_HOME"] = find_java().home
    return ours


def _conf_folder(scratch: str) -> str:
    folder = Path(scratch, "conf")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    return str(folder)


def _temporary() -> str:
    scratch = tempfile.mkdtemp(prefix="cmdlog-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch


@contextmanager
def _changed(environment: Mapping[str, str]) -> Iterator[None]:
    """The environment with these, and as before at the end."""
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
