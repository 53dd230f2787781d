"""Carries out a Dockerfile where no builder is: its instructions in a root of their own, then the commands of its first lines.

Run as root in new namespaces of mounts, processes and network (`unshare`). The base image is this machine: its /usr and the
interpreter with the installed packages, so pip finds what is to be installed and fetches nothing. Prints JSON of what the
server was seen to do.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.waiting import PATIENCE_S, ask_for

PATH: Final = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
OFFLINE: Final = {"PATH": PATH, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
ETC: Final = ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "ld.so.cache", "default")
VALUED: Final = ("-v", "-p", "--name", "--entrypoint", "--stop-timeout")  # options of `docker run` that take one
NO_MOUNTS: Final = 3  # exit code: not allowed on this machine, or on this file system
INTERFACE_UP, SET_FLAGS = 0x1 | 0x40, 0x8914  # IFF_UP | IFF_RUNNING, SIOCSIFFLAGS


@dataclass(frozen=True)
class Dockerfile:
    """What the file says."""

    instructions: list[tuple[str, str]]
    commands: list[str]  # of its first lines: build, run before, and serve

    @classmethod
    def parse(cls, text: str) -> Dockerfile:
        lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line]
        commands = [line.lstrip("# ") for line in lines if line.lstrip("# ").startswith("docker ")]
        split = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
        return cls([(word, rest) for word, rest in split], commands)

    def last(self, instruction: str) -> str:
        """What the last one of these says."""
        return dict(self.instructions)[instruction]

    @property
    def base(self) -> str:
        return self.last("FROM")

    @property
    def probe(self) -> list[str]:
        words: list[str] = json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])
        return words

    def command(self, docker_run: str) -> list[str]:
        """What a line of `docker run` starts."""
        words = iter(shlex.split(docker_run)[2:])
        options = dict[str, str]()
        for word in words:
            if not word.startswith("-"):
                break  # the image's name
            options[word] = next(words) if word in VALUED else ""
        entrypoint = [options["--entrypoint"]] if "--entrypoint" in options else json.loads(self.last("ENTRYPOINT"))
        return [*entrypoint, *(list(words) or json.loads(self.last("CMD")))]


@dataclass
class Image:
    """What the instructions so far have made."""

    root: Path
    context: Path
    user: str = "root"
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=lambda: dict(OFFLINE))

    def carry_out(self, instruction: str, rest: str) -> None:
        """One line of the Dockerfile."""
        if instruction == "RUN":
            self.start(["/bin/sh", "-c", rest], check=True)
        elif instruction == "COPY":
            *sources, target = rest.split()
            into = self.root / os.path.join(self.workdir, target).lstrip("/")
            into.mkdir(parents=True, exist_ok=True)
            for source in sources:
                for found in glob.glob(str(self.context / source)):
                    shutil.copy(found, into)
        elif instruction == "WORKDIR":
            self.workdir = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "USER":
            self.user = rest
        elif instruction == "ENV":
            self.env.update(dict(pair.split("=", 1) for pair in shlex.split(rest)))

    def start(self, command: list[str], *, check: bool = False, wait: bool = True) -> Any:
        """A process of the image: its exit code, or the process."""

        def enter() -> None:
            uid, gid = self.ids()
            os.chroot(self.root)
            os.chdir(self.workdir)
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)

        process = subprocess.Popen(
            command,
            env=self.env,
            preexec_fn=enter,  # noqa: PLW1509 - one thread
            stdout=sys.stderr,
            executable=shutil.which(command[0], path=PATH),
        )
        if not wait:
            return process
        code = process.wait(PATIENCE_S)
        if check and code:
            raise SystemExit(f"{command} ended with {code}")
        return code

    def ids(self) -> tuple[int, int]:
        """Of the user."""
        lines = (self.root / "etc/passwd").read_text().splitlines()
        (found,) = (line.split(":") for line in lines if line.startswith(f"{self.user}:"))
        return int(found[2]), int(found[3])


def make_root(root: Path) -> None:
    """This machine's programs below a new root; what is written there goes nowhere else."""
    for name in os.listdir("/"):
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
    for name in ("proc", "dev", "etc", "tmp"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    _mount("-t", "proc", "proc", root / "proc")
    _mount("--rbind", "/dev", root / "dev")
    for path in ("/usr", sys.base_prefix, sys.prefix):
        _cover(root, path)
    for name in ETC:
        if os.path.exists(f"/etc/{name}"):
            subprocess.run(["cp", "-a", f"/etc/{name}", str(root / "etc")], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", INTERFACE_UP))


def _cover(root: Path, path: str) -> None:
    """A folder of this machine in the root, under one that takes what is written."""
    place, written = root / path.lstrip("/"), Path(tempfile.mkdtemp(dir=root.parent))
    if place.exists():
        return  # it is below one that is there
    for folder in (place, written / "upper", written / "work"):
        folder.mkdir(parents=True)
    _mount("-t", "overlay", "-o", f"lowerdir={path},upperdir={written}/upper,workdir={written}/work", "overlay", place)


def _mount(*arguments: str | Path) -> None:
    if subprocess.run(["mount", *map(str, arguments)], check=False).returncode:
        raise SystemExit(NO_MOUNTS)


def status_without_credential(url: str) -> int:
    """What a stranger is answered."""
    try:
        return int(urllib.request.urlopen(url, timeout=PATIENCE_S).status)  # noqa: S310 - http, as the Dockerfile says
    except urllib.error.HTTPError as error:
        return error.code


def main(context: Path, root: Path) -> None:
    """Builds, and runs what the first lines say; the last of them is the server."""
    os.umask(0o022)
    make_root(root)
    image, file = Image(root, context), Dockerfile.parse((context / "Dockerfile").read_text())
    for instruction, rest in file.instructions:
        image.carry_out(instruction, rest)
    *before, serving = (file.command(line) for line in file.commands if line.startswith("docker run"))
    for command in before:
        image.start(command, check=True)
    server = image.start(serving, wait=False)
    ask_for(lambda: server.poll() is not None or image.start(file.probe) == 0, why="the probe finds no server")
    seen = {
        "ready": server.poll() is None,
        "uids": re.findall(r"^Uid:\s+(\d+)\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE),
        "stranger": status_without_credential(re.findall(r"http://\S+/readyz", file.last("HEALTHCHECK"))[0]),
        "modes": {path.name: [path.stat().st_uid, oct(path.stat().st_mode & 0o7777)] for path in (root / "data").iterdir()},
    }
    server.send_signal(signal.Signals[file.last("STOPSIGNAL")])
    print(json.dumps({**seen, "ended": server.wait(PATIENCE_S)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
