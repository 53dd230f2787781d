"""`cmdlog token add | list | remove`: the token file of a server.

One rule: a change is one atomic replacement of the file, so a server that reads it sees the old credentials or the new ones; a
token is printed once, by the command that makes it, and kept nowhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.api.gate.route_table import ROLES
from cmdlog.api.gate.token_file import (
    CREDENTIALS_MAX,
    HEAD,
    NAME,
    BadTokenFile,
    Credential,
    TokenFile,
    digest_of,
    make_token,
    parse_file,
    read_file,
    read_roles,
    read_time,
    write_line,
    write_time,
)
from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import JsonFlag, out
from cmdlog.file_lock import FOREVER, lock

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The token file.")]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Name of the token's owner, to whom idempotency keys belong.")
]
RoleOption = Annotated[list[str], typer.Option("--role", metavar="ROLE", help=f"One of {', '.join(ROLES)}; may be repeated.")]
ExpiresOption = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="30d|TIME", help="After this many days, hours or minutes (30d, 12h, 5m), or at this RFC 3339 time."
    ),
]
IdOption = Annotated[str | None, typer.Option("--id", metavar="ID", help="Only the token with this id, from `list`.")]

SPAN: Final = re.compile(r"([0-9]{1,5})([dhm])")
SPAN_S: Final = {"d": 86_400, "h": 3600, "m": 60}
MODE: Final = 0o600

HELP: Final = """Make, list and remove the credentials of a server.

[bold]Roles[/bold]

  read    query, read-only procedures, catalog, status, metrics, dashboard
  invoke  every procedure and batches; catalog and health
  admin   everything, snapshots included

[bold]Examples[/bold]

  cmdlog token add tokens --name shop --role invoke --expires 90d
  cmdlog serve shop:db --token-file tokens

A running server rereads the file within a second. To replace a token, add
another one with the same name, give it to the client, and remove the old
one with --id.
"""


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")
    group.command("add", help="Create a token, store its hash, print the token once.")(add)
    group.command("list", help="Show names, roles and expiry; never a token.")(list_them)
    group.command("remove", help="Remove the tokens of a name.")(remove)
    program.add_typer(group, name="token")


def add(file: FileArgument, name: NameOption, role: RoleOption, expires: ExpiresOption = None, json: JsonFlag = False) -> None:
    """Creates the file if it does not exist."""
    if not NAME.fullmatch(name):
        raise _usage("--name", "must have 1 to 63 letters, digits and . _ @ -, a letter or digit first")
    token = make_token()
    credential = Credential(name, _roles(role), digest_of(token.encode()), _expiry(expires))
    with _editing(file) as edit:
        if len(edit.held.credentials) >= CREDENTIALS_MAX:
            raise CommandFailed(f"{file} holds {CREDENTIALS_MAX} tokens already", hint="remove expired tokens")
        edit.write((edit.text or HEAD + "\n").rstrip("\n") + "\n" + write_line(credential) + "\n")
    out.result({**_row(credential), "token": token}, lambda: _show_token(credential, token, file))


def list_them(file: FileArgument, json: JsonFlag = False) -> None:
    """Reads the file and changes nothing."""
    held = _parse(file, _read(file, must_exist=True))
    rows = [_row(credential) for credential in held.credentials]
    columns = ("name", "id", "roles", "expires", "expired")
    shown = [tuple(_cell(row[column]) for column in columns) for row in rows]
    out.result({"credentials": rows}, lambda: out.table("Credentials", columns, shown))


def remove(file: FileArgument, name: NameOption, id: IdOption = None, json: JsonFlag = False) -> None:  # noqa: A002 - the option's name
    """Comments and the other lines stay as they are."""
    with _editing(file, must_exist=True) as edit:
        gone = [one for one in edit.held.credentials if one.name == name and id in (None, one.id)]
        if not gone:
            raise CommandFailed(f"{file} has no token of {name!r}" + (f" with id {id}" if id else ""))
        marks = {f"sha256:{credential.digest.hex()}" for credential in gone}
        lines = edit.text.splitlines(keepends=True)
        kept = [line for line in lines if line.lstrip().startswith("#") or marks.isdisjoint(line.split())]
        # A comment at least: an empty file might be a half-written one, which servers do not follow.
        edit.write("".join(kept) if "".join(kept).strip() else HEAD + "\n")
    removed = [_row(credential) for credential in gone]
    out.result(
        {"removed": removed},
        lambda: out.text(f"removed {len(removed)} of {name}; running servers reread the file within a second"),
    )


@dataclass(slots=True)
class _Edit:
    """A token file under its lock."""

    path: Path
    text: str  # as it is, "" for none
    held: TokenFile

    def write(self, text: str) -> None:
        """Puts a whole new file in the place of the old one, readable by its owner alone. Durable on return."""
        parse_file(text.encode())  # what a server would refuse is never written
        fd, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), MODE)
                _keep_owner(file.fileno(), self.path)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync_directory(self.path.parent)


@contextlib.contextmanager
def _editing(file: Path, *, must_exist: bool = False) -> Iterator[_Edit]:
    """One editor at a time: the lock is on the directory, because the file itself is replaced."""
    path = file.resolve()  # a link keeps pointing to the file
    if not path.parent.is_dir():
        raise CommandFailed(f"{path.parent} is not a directory", exit_code=2)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(directory, wait_s=FOREVER)
        data = _read(path, must_exist=must_exist)
        yield _Edit(path, data.decode("ascii", "replace"), _parse(file, data) if data.strip() else TokenFile(()))
    finally:
        os.close(directory)


def _read(path: Path, *, must_exist: bool) -> bytes:
    try:
        return read_file(path)
    except BadTokenFile as error:
        raise CommandFailed(f"{path} {error}") from None
    except FileNotFoundError:
        if must_exist:
            raise CommandFailed(f"{path} does not exist", hint="`cmdlog token add` makes it", exit_code=2) from None
        return b""


def _parse(path: Path, data: bytes) -> TokenFile:
    try:
        return parse_file(data)
    except BadTokenFile as error:
        raise CommandFailed(f"{path}: {error}", hint="fix the line by hand; nothing was changed") from None


def _keep_owner(fd: int, path: Path) -> None:
    """The server may run as another user than the editor of the file."""
    with contextlib.suppress(FileNotFoundError):
        old, new = path.stat(), os.fstat(fd)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.fchown(fd, old.st_uid, old.st_gid)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _roles(given: list[str]) -> frozenset[str]:
    roles: frozenset[str] = _or_usage("--role", read_roles, ",".join(given))
    return roles


def _expiry(given: str | None) -> float | None:
    if given is None:
        return None
    span = SPAN.fullmatch(given)
    if span is None and given.isdigit():
        raise _usage("--expires", f"{given!r} has no unit: give days, hours or minutes, such as {given}d")
    moment = time.time() + int(span[1]) * SPAN_S[span[2]] if span else _or_usage("--expires", read_time, given)
    if moment <= time.time():
        raise _usage("--expires", f"{given} is in the past")
    return float(int(moment))  # files hold whole seconds


def _or_usage(option: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except (ValueError, OverflowError) as error:
        raise _usage(option, str(error)) from None


def _usage(option: str, problem: str) -> CommandFailed:
    return CommandFailed(f"{option}: {problem}", exit_code=2)


def _row(credential: Credential) -> dict[str, Any]:
    expires = credential.expires_s
    return {
        "name": credential.name,
        "id": credential.id,
        "roles": list(credential.stated_roles),
        "expires": None if expires is None else write_time(expires),
        "expired": expires is not None and expires <= time.time(),
    }


def _cell(value: Any) -> str:
    return "" if value in (None, False) else "yes" if value is True else ",".join(value) if type(value) is list else str(value)


def _show_token(credential: Credential, token: str, file: Path) -> None:
    """The token alone on standard output, so that a pipe gets it; the rest on standard error."""
    until = f", until {write_time(credential.expires_s)}" if credential.expires_s is not None else ""
    out.print_note(f"{credential.name} may {', '.join(credential.stated_roles)}{until}; {file} holds only its hash")
    out.print_note("this is the only time that the token is shown:")
    out.text(token)
