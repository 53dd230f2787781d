"""A Spark session inside this process, with settings that fit the command log.

One rule: existing settings win. A session that runs already is used, a cluster's own settings (`spark-submit`,
SPARK_CONF_DIR, PYSPARK_PYTHON) stay, and the environment of this process is as before on return: only the JVM that is started
gets ours.

Why the settings are as they are:
- times are UTC everywhere, since Spark would shift them by the zone of the machine;
- `local[N,4]`: plain `local[N]` never tries a failed task again;
- loopback only, no web page: an embedded session is private;
- Python workers run this interpreter;
- the folder that holds `pyspark_cmdlog` is on the path of the JVM's Pythons, where Spark looks for `format("cmdlog")`; a session
that already runs is informed;
- the Pythons of this machine come from our daemon, which prints no traceback when a read ends early
(`replay.spark.base.quiet_daemon`); - executors on other machines get the sources of this process
(`replay.spark.base.executor_zip`).

A standalone master that does not listen is refused before Java starts: Spark itself would retry for a minute.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from procedures.execution import hash_seed
from replay.errors import ReplayError
from replay.spark.base.executor_zip import ship
from replay.spark.base.java import find_java
from replay.spark.base.parallelism import FILE, SETTING, VARIABLE, state_parallelism
from replay.spark.base.scratch import make_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*,4]"
DRIVER_MEMORY: Final = "1g"  # a rebuild takes 0.45 GB of it, a sort of five million calls passed with it
DISCOVERY_FOLDER: Final = Path(__file__).parent / "discover"
_KNOWN: Final = "spark.cmdlog.known"  # setting of a session in which `format("cmdlog")` is found
DAEMON: Final = "replay.spark.base.quiet_daemon"
STANDALONE: Final = "spark://"
SOCKET_FOLDER_BYTES_MAX: Final = 64  # a socket's path has 107 bytes at most, of which Spark's name for it takes 42
MASTER_S_MAX: Final = 5.0  # for a connection to one address; a master that runs takes it at once
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


class MasterSilent(ReplayError):
    """The named master does not listen."""

    hint = "check that it is running, and the address: it is the spark://HOST:PORT at the top of the master's page and in its log"


class NoSession(ReplayError):
    """Spark was started and gave up."""

    hint = "a master is spark://HOST:PORT, yarn, k8s://…, or local[N,4]"


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
    """The running session, or a new one. `conf` overrides everything that is set here.

    `worker_memory` limits the Pythons of an executor, so that one gets a MemoryError before the machine runs short; Spark then
    writes a line about it for each task, so it is for those who need it. `scratch` takes shuffle files and the warehouse; by
    default a temporary folder that is removed at exit. `tuning` "start" is for short-lived sessions.

    Raises: JavaMissing, MasterSilent, NoSession.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second, which a command's help does not need

    running = SparkSession.getActiveSession()
    if running is not None:
        return _prepared(running)
    settings: dict[str, str] = {"spark.sql.session.timeZone": "UTC", "spark.app.name": name}
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, whose JVM is there already and knows its cluster
    environment: dict[str, str] = {}
    if not submitted:
        scratch = scratch or make_scratch()
        master = master or os.environ.get("SPARK_MASTER") or MASTER
        check_master(master)
        settings |= _embedded(master, scratch, tuning, driver_memory, worker_memory)
        environment = _environment(master, scratch, tuning)
    builder = SparkSession.Builder()
    for key, value in (settings | dict(conf or {})).items():
        builder = builder.config(key, value)
    with _changed(environment):
        return _prepared(_started(builder, master))


def _prepared(spark: SparkSession) -> SparkSession:
    """The session with the package on its executors, and `format("cmdlog")` registered."""
    if spark.conf.get(_KNOWN, ""):
        ship(spark)
        state_parallelism(spark)
        return spark
    from replay.spark.datasource.source import register  # noqa: PLC0415 - as above

    register(spark)
    spark.conf.set(_KNOWN, "true")
    return spark


def _started(builder: SparkSession.Builder, master: str | None) -> SparkSession:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        told = getattr(error, "java_exception", None) or error
        first = next((line.strip() for line in str(told).splitlines() if line.strip()), type(error).__name__)
        raise NoSession(f"Spark does not start on {master or 'the cluster of spark-submit'}: {first}") from error


def check_master(master: str) -> None:
    """Raises: MasterSilent, when no process listens at any address of a standalone master (`spark://HOST:PORT,…`)."""
    if not master.startswith(STANDALONE):
        return
    silent = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 1 << 16):
            silent.append(f"{address} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_S_MAX).close()
        except OSError as error:
            silent.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise MasterSilent(f"no Spark master listens at {master} ({'; '.join(silent)})")


def _embedded(master: str, scratch: str, tuning: Tuning, driver_memory: str, worker_memory: str | None) -> dict[str, str]:
    settings = {
        _KNOWN: "true",
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": driver_memory,
        "spark.local.dir": os.path.join(scratch, "local"),
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        SETTING: os.path.join(scratch, FILE),
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"} | _local_sockets(scratch)
    if master.partition("[")[0] == "local":
        settings["spark.python.daemon.module"] = DAEMON  # an executor of a cluster gets our sources only after its daemon started
    if worker_memory is not None:
        settings["spark.executor.pyspark.memory"] = worker_memory
    if tuning == "start":
        settings["spark.driver.extraJavaOptions"] = _START
    return settings


def _local_sockets(scratch: str) -> dict[str, str]:
    """Java and its Pythons talk over Unix sockets, which saves a sixth of what rows cost; where paths may be so long."""
    if len(os.fsencode(scratch)) > SOCKET_FOLDER_BYTES_MAX:
        return {}
    os.makedirs(scratch, exist_ok=True)
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": scratch}


def _environment(master: str, scratch: str, tuning: Tuning) -> dict[str, str]:
    """What the JVM inherits. What the user has set stays."""
    ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": _conf_folder(scratch)}
    if master.startswith("local"):
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    if tuning == "start":
        ours["SPARK_LAUNCHER_OPTS"] = _START  # of the small JVM that puts the command line of the large one together
    ours = {key: os.environ.get(key) or value for key, value in ours.items()}
    ours[hash_seed.VARIABLE] = hash_seed.PINNED  # not the user's to choose: executors run logged calls
    inherited = os.environ.get("PYTHONPATH")
    folders = [str(DISCOVERY_FOLDER), str(Path(__file__).parents[2])]
    ours["PYTHONPATH"] = os.pathsep.join([*folders, inherited] if inherited else folders)
    ours["JAVA_HOME"] = find_java().home
    ours[VARIABLE] = os.path.join(scratch, FILE)
    return ours


def _conf_folder(scratch: str) -> str:
    folder = Path(scratch, "conf")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    return str(folder)


@contextmanager
def _changed(environment: Mapping[str, str]) -> Iterator[None]:
    """Changes the environment, and restores it at the end."""
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
