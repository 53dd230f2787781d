"""The local token: found by the owner of the process that listens, and shown to no other process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cmdlog.wal.directory import local_token
from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME, find_local_token, is_loopback, shown_to_owner

TOKEN = f"cmdlog_{'x' * 43}"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of a server in this process, which holds a file of its directory open and shows its token there."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        (tmp_path / "LOCK").open("w"),
        shown_to_owner(str(tmp_path), TOKEN),
    ):
        yield int(listener.getsockname()[1])


def test_the_token_of_a_server_is_found_by_its_address(port: int) -> None:
    """By each way to write loopback; not at another port, nor at an address that is not this machine's."""
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert find_local_token(f"http://{host}:{port}") == TOKEN
    assert find_local_token("http://127.0.0.1:1") == ""
    for host in ("10.0.0.1", "example.org", "localhost.example.org"):
        assert find_local_token(f"http://{host}:{port}") == ""
    assert all(map(is_loopback, ("127.8.9.1", "::1", "localhost")))


def test_one_listener_of_another_user_on_the_port_costs_the_token(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them `localhost` leads to is not known before: somebody may listen at ::1 who could not at 127.0.0.1."""
    listeners = local_token._listeners
    monkeypatch.setattr(local_token, "_listeners", lambda of: {**listeners(of), "socket:[1]": NOBODY})
    assert find_local_token(f"http://localhost:{port}") == ""


def as_link(path: Path) -> None:
    """The same token, elsewhere."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def as_pipe(path: Path) -> None:
    """What nobody writes to."""
    path.unlink()
    os.mkfifo(path, 0o600)


SPOILED: dict[str, Callable[[Path], object]] = {
    "a link": as_link,
    "readable by others": lambda path: path.chmod(0o640),
    "another user's": lambda path: os.chown(path, NOBODY, NOBODY),
    "another secret": lambda path: path.write_text("root:x:0:0:root\n"),
    "with more behind it": lambda path: path.write_text(f"{TOKEN}\n{TOKEN}\n"),
    "a pipe": as_pipe,
}


@needs_root
@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_is_no_token_of_the_servers_user_is_not_sent(port: int, tmp_path: Path, how: str) -> None:
    """A process that waits for root's command may have put anything there, such as a link to what it may not read."""
    SPOILED[how](tmp_path / LOCAL_TOKEN_NAME)
    assert find_local_token(f"http://127.0.0.1:{port}") == ""


@needs_root
def test_another_user_finds_nothing(port: int) -> None:
    """Neither by the address nor in the file. The child has no file of its parent open: Linux is asked."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.dup2(writer, 3)
            os.closerange(4, 1 << 16)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(3, repr(find_local_token(f"http://127.0.0.1:{port}")).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        assert output.read() == "''"
    os.waitpid(child, 0)
