"""Programs of the product that tests start, forked from a process that has imported them: a start takes 10 ms, not a second.

Half of the time of all tests was imports: a site takes 0.8 s of processor for them, `cmdlog serve` twice that. So
`subprocess.Popen` asks for `python -m cmdlog…` (`replay`, `snapshot`, `procedures`, and programs of tests with nodes) here.
Everything else starts as ever, and so does a program whose start is special: options of the interpreter, another locale or time
zone, a function to run first (but for a limit other than that of the address space). There is a process of the imports for each
of three hash seeds: that of sites, the one under which `cmdlog.testing` replays what was called, and the other one of `check`;
all others are special. The runs of `check` are to differ in locale and time zone: they get the zone, and of the locale the
variables.

The program is a child of the process that asked, with the descriptors, folder, environment, limits, group and policy that it
would have: the process of the imports forks twice, and the kernel hands the orphan to the process that asked, which is the
nearest `PR_SET_CHILD_SUBREAPER`. A server forks a process of the imports for its sites before it does anything else, and so do
commands with workers, and the demo for its servers.

One thing differs: a program that takes only time that nobody else wants, such as the one that seals a snapshot, gets its share
like any other. Tests wait for it, and beside each other they want all the time that there is.

`TESTS_START=cold` switches this off; the fixture `cold_start` does so for one test.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import itertools
import json
import os
import resource
import runpy
import socket
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[1]
HOME: Final = str(ROOT)
PRODUCT: Final = ("cmdlog", "procedures", "replay", "snapshot")
IMPORTED: Final = (
    "cmdlog.api.routes.cold_routes",
    "cmdlog.api.app", "cmdlog.api.server", "cmdlog.cli.app", "cmdlog.cli.server.serve", "cmdlog.node.background.page_checks",
    "cmdlog.node.node", "cmdlog.node.queries.worker", "cmdlog.node.sites.site_main", "cmdlog.testing.server_main",
    "procedures.checks.check",
    "replay.drill.drill", "replay.fork.worker", "replay.recover.worker", "replay.state.page_check",
    "snapshot.archive.segment_copy", "snapshot.background_io", "snapshot.capture.seal",
)  # fmt: skip
OF_REPLAYS: Final = ("replay.recover.worker",)
OF_CHECKS: Final = ("procedures.checks.check", "procedures.checks.migrations")
SEEDS: Final = {"0": IMPORTED, "1": (*OF_REPLAYS, *OF_CHECKS), "2": OF_CHECKS}
STARTERS: Final = {"demo", "drill", "fork", "recover", "serve"}  # commands whose processes start more of the product
OF_TESTS: Final = (  # programs with nodes, and one with clients
    "tests.node.apps.holder", "tests.node.deploy_victim", "bench.soak", "bench._soaker",
)  # fmt: skip
OBEYED: Final = ("PYTHONHASHSEED", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # variables that may differ
AS_HERE: Final = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")  # variables that the interpreter and its libraries read at the start
LIMITS: Final = sorted(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
PR_SET_CHILD_SUBREAPER: Final = 36
MESSAGE_BYTES: Final = 1 << 20
SWITCH: Final = "TESTS_START"

_lock = threading.Lock()
_asked: dict[str, socket.socket] = {}  # hash seed -> to the process of the imports, once it was needed
_importers: list[subprocess.Popen[bytes]] = []
_start_cold = subprocess.Popen[Any]._execute_child  # type: ignore[attr-defined]


def _execute_child(self: Any, *given: Any) -> None:
    """In place of that of `subprocess.Popen`, which has made the pipes and takes the process id from here."""
    args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more = given
    _, _, shell, *ends = more[:9]
    (stdin, _, _, stdout, _, stderr), (_, *owner, umask, new_session, group) = ends, more[9:]
    environ = dict(os.environ if env is None else env)
    limit = _limit(preexec_fn)
    special = (
        executable or (preexec_fn and not limit) or shell or not close_fds or any(one is not None for one in owner) or umask != -1
    )
    if special or not _is_ours(args, environ, cwd):
        _start_cold(self, *given)
        return
    order = {
        "argv": [os.fspath(one) for one in args], "environ": environ, "cwd": os.path.abspath(cwd or "."), "parent": os.getpid(),
        "limits": [limit.get(one) or resource.getrlimit(one) for one in LIMITS], "policy": os.sched_getscheduler(0),
        "new_session": new_session, "group": os.getpgrp() if group < 0 else group, "fds": sorted({0, 1, 2, *pass_fds}),
        "stdio": [stdin, stdout, stderr],
    }  # fmt: skip
    standard = [given if given != -1 else number for number, given in enumerate((stdin, stdout, stderr))]
    self.pid = _fork(order, [*standard, *(fd for fd in order["fds"] if fd > 2)])
    self._child_created = True
    self._close_pipe_fds(*ends)


def _limit(preexec_fn: Any) -> dict[int, tuple[int, int]]:
    """The limit that a start sets by `partial(resource.setrlimit, …)`; one of the address space needs a start in earnest, since
    imports of others take room there.
    """
    if not isinstance(preexec_fn, partial) or preexec_fn.func is not resource.setrlimit:
        return {}
    which, values = preexec_fn.args
    return {} if which == resource.RLIMIT_AS else {which: values}


def _is_ours(args: Any, environ: dict[str, str], cwd: Any) -> bool:
    """Whether the process of the imports can stand for the start."""
    if os.environ.get(SWITCH) == "cold" or isinstance(args, str | bytes) or environ.get("PYTHONHASHSEED") not in SEEDS:
        return False
    words = [os.fspath(one) for one in args]
    module = next(iter(_program(words)), "")
    if not (module.partition(".")[0] in PRODUCT or module in OF_TESTS):
        return False
    if any(name.startswith("LD_") for name in environ):  # what the linker reads
        return False
    here_or_there = module == "cmdlog.die_with_parent" and _program(words)[4] in OF_CHECKS
    if not here_or_there and any(environ.get(name) != os.environ.get(name) for name in AS_HERE):
        return False
    if any(name.startswith("PYTHON") and name not in OBEYED and os.environ.get(name) != environ[name] for name in environ):
        return False
    places = [] if words[1] == "-P" else [os.fspath(cwd or ".")]
    places += filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    before = itertools.takewhile(lambda place: place != HOME, map(os.path.realpath, places))
    return not any(os.path.exists(f"{place}/{name}") for place in before for name in PRODUCT)


def _program(words: list[str]) -> list[str]:
    """The module and its arguments, after `python -m` or `python -P -m`; nothing for other command lines."""
    options = 2 + (words[1:2] == ["-P"])
    return words[options:] if [words[0], words[options - 1 : options]] == [sys.executable, ["-m"]] else []


def _fork(order: dict[str, Any], fds: list[int]) -> int:
    """The process id of a program."""
    with _lock:
        seed = order["environ"]["PYTHONHASHSEED"]
        near = _asked.get(seed) or _import_all(seed)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(near, [json.dumps(order).encode()], fds)
            return int(near.recv(64))
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _import_all(seed: str) -> socket.socket:
    """Starts a process of the imports; it ends when this one does."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    command = [sys.executable, "-m", "tests.warm_start", str(far.fileno())]
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    with far:
        _importers.append(
            subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=(far.fileno(),), stdin=subprocess.DEVNULL, process_group=0)
        )
    _asked[seed] = near
    return near


def start_importers() -> None:
    """Starts the processes of the imports that no program has needed yet."""
    with _lock:
        for seed in SEEDS.keys() - _asked.keys():
            _import_all(seed)


def install() -> None:
    """From now on programs of the product start warm."""
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def end() -> None:
    """Nothing is started any more."""
    subprocess.Popen._execute_child = _start_cold  # type: ignore[attr-defined]
    for near in _asked.values():
        near.close()
    for importer in _importers:
        importer.wait()


# -- in the process of the imports -----------------------------------------------------------------------------------------


def serve(near: socket.socket, paths: list[str]) -> None:
    """Forks one program per order. Returns in the programs only."""
    while True:
        data, fds, _, _ = socket.recv_fds(near, MESSAGE_BYTES, 250)
        if not data:
            os._exit(0)
        read, write = os.pipe()
        if (middle := os.fork()) == 0:
            if os.fork() != 0:
                os._exit(0)
            order = json.loads(data)
            lead(order)  # before the other side knows the process: it may end its group at once
            os.write(write, str(os.getpid()).encode())
            os.close(read)
            os.close(write)
            near.close()
            become(order, fds, paths)
            return
        os.close(write)
        os.waitpid(middle, 0)  # the program is now a child of the process that asked
        near.send(os.read(read, 64))
        for fd in (read, *fds):
            os.close(fd)


def lead(order: dict[str, Any]) -> None:
    """Joins, or makes, the process group that the program is to be in."""
    if order["new_session"]:
        os.setsid()
    else:
        os.setpgid(0, order["group"])


def become(order: dict[str, Any], fds: list[int], paths: list[str]) -> None:
    """Takes on what a started program has, and nothing else."""
    while os.getppid() != order["parent"]:  # until the process between the two has ended
        if os.getppid() == 1:
            os._exit(1)
        os.sched_yield()
    take_on(order, fds, paths)
    for limit, values in zip(LIMITS, order["limits"], strict=True):
        resource.setrlimit(limit, values)
    os.sched_setscheduler(0, order["policy"], os.sched_param(0))


def take_on(order: dict[str, Any], fds: list[int], paths: list[str]) -> None:
    """Descriptors, environment, folder, paths of modules, standard streams and arguments."""
    _place(fds, order["fds"])
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    os.chdir(order["cwd"])
    here = [] if "-P" in order["argv"][1:2] else [order["cwd"]]
    sys.path[:] = [*here, *filter(None, order["environ"].get("PYTHONPATH", "").split(os.pathsep)), *paths]
    sys.dont_write_bytecode = bool(order["environ"].get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    _open_standard(buffered=not order["environ"].get("PYTHONUNBUFFERED"))
    sys.orig_argv[:] = order["argv"]
    sys.argv[:] = _program(order["argv"])


def _place(fds: list[int], numbers: list[int]) -> None:
    """Gives each descriptor the number that it had, and closes all others."""
    above = max(*fds, *numbers) + 1
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    os.closerange(0, above)
    for fd, number in zip(high, numbers, strict=True):
        os.dup2(fd, number)
    os.closerange(above, max(high) + 1)


def _open_standard(*, buffered: bool) -> None:
    """The three streams, as the interpreter makes them."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw: Any = open(number, "wb", -1 if buffered else 0, closefd=False)  # noqa: SIM115
        lines = buffered and (number == 2 or os.isatty(number))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=lines, write_through=not buffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def fork_importer(paths: list[str]) -> None:
    """A server has sites to start: they come from a process like this one, forked while there is but one thread."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        far.close()
        _asked[os.environ["PYTHONHASHSEED"]] = near
        install()
        return
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    _place([nothing, nothing, nothing, far.detach()], [0, 1, 2, 3])
    serve(socket.socket(fileno=3), paths)


def keep_priority() -> None:
    """From now on this program lets nobody go first."""
    os.nice = lambda _increment: 0
    os.sched_setscheduler = lambda _process, _policy, _param: None


def run() -> NoReturn:
    """What `python -m` does; but an end does not take the interpreter apart, which costs as much as the imports."""
    keep_priority()
    warnings.filterwarnings(
        "ignore", category=RuntimeWarning, module="runpy"
    )  # the module was imported before: that is the point
    code: Any = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code & 255)


if __name__ == "__main__":
    far = socket.socket(fileno=int(sys.argv[1]))
    for module in SEEDS[os.environ["PYTHONHASHSEED"]]:
        importlib.import_module(module)
    if "cmdlog.cli.app" in sys.modules:
        program = sys.modules["cmdlog.cli.app"]
        for command in ("", *program.COMMANDS):
            program.command_parser(command)
    gc.freeze()  # a program's collector would copy all of these pages
    own = {"", str(ROOT), os.getcwd()}
    base = [path for path in sys.path if path not in own]
    serve(far, base)
    if sys.argv[0] in OF_TESTS or STARTERS.intersection(sys.argv):
        fork_importer(base)
    run()
