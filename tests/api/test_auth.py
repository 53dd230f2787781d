"""Who is let in: the right token, now, and nobody else; whatever happens to the file or the clock."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cmdlog.api.gate.auth import RELOAD_S, Credentials, ForwardClock, LocalCallers, make_gatekeeper, scope_of
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.route_table import LOCAL_ROLES
from cmdlog.api.gate.token_file import Credential, digest_of, write_line
from cmdlog.api.routes.service import Service
from cmdlog.node.settings import BadSetting, Settings
from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME


class Clocks:
    """Both clocks of a machine, as a test moves them."""

    def __init__(self) -> None:
        self.wall, self.running = 1_800_000_000.0, 100.0

    def pass_s(self, seconds: float) -> None:
        """Time goes by."""
        self.wall += seconds
        self.running += seconds


@pytest.fixture
def clocks() -> Clocks:
    """The clocks of the credentials under test."""
    return Clocks()


def line(name: str, token: bytes, *roles: str, expires_s: float | None = None) -> str:
    """A line of a token file."""
    return write_line(Credential(name, frozenset(roles), digest_of(token), expires_s)) + "\n"


def opened(path: Path, clocks: Clocks) -> Credentials:
    """The credentials of a file, on the test's clocks."""
    clock = ForwardClock(lambda: clocks.wall, lambda: clocks.running)
    return Credentials(path, clock=clock, monotonic=lambda: clocks.running)


def let_in(credentials: Credentials, header: bytes | None) -> str | None:
    """The name that a header stands for; None when it is refused."""
    try:
        return credentials.authenticate(header).name
    except Problem as problem:
        return None if (problem.status, problem.code) == (401, "unauthenticated") else problem.code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two credentials, the second until 1,000 seconds after the start of the clock."""
    path = tmp_path / "tokens"
    path.write_text(
        line("shop", b"token-of-shop", "invoke") + line("guest", b"token-of-guest", "read", expires_s=1_800_001_000.0)
    )
    path.chmod(0o600)
    return path


def test_each_token_stands_for_its_credential(file: Path, clocks: Clocks) -> None:
    """Name and roles come from the line whose hash fits; the scheme's case does not matter."""
    credentials = opened(file, clocks)
    assert let_in(credentials, b"Bearer token-of-shop") == "shop"
    assert let_in(credentials, b"bearer  token-of-guest ") == "guest"
    assert credentials.authenticate(b"BEARER token-of-guest").roles == {"read"}


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer token-of-sho",
        b"Bearer token-of-shopp",
        b"Bearer Token-of-shop",
        b"Bearer \xff\xfe",
        b"Basic token-of-shop",
        b"token-of-shop",
        b"Bearertoken-of-shop",
        b"Bearer token-of-shop, token-of-guest",
        b"Bearer " + digest_of(b"token-of-shop").hex().encode(),
        b"Bearer sha256:" + digest_of(b"token-of-shop").hex().encode(),
        b"Bearer " + b"x" * 100_000,
    ],
)
def test_nothing_else_is_let_in(file: Path, clocks: Clocks, header: bytes | None) -> None:
    """Not a part of a token, nor more than it, nor what the file holds of it."""
    assert let_in(opened(file, clocks), header) is None


def test_every_credential_is_compared_whoever_fits(file: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """No early end: how long a request takes does not tell which line fits, nor whether one does."""
    compared: list[bytes] = []

    def compare(kept: bytes, given: bytes) -> bool:
        compared.append(kept)
        return kept == given

    monkeypatch.setattr("cmdlog.api.gate.auth.compare_digest", compare)
    credentials = opened(file, clocks)
    for token, count in ((b"token-of-shop", 2), (b"token-of-guest", 4), (b"nobody", 6)):
        let_in(credentials, b"Bearer " + token)
        assert len(compared) == count


def test_change_of_the_file_counts_within_a_second(file: Path, clocks: Clocks) -> None:
    """A new credential works and a removed one does not, without a restart; the file is looked at once a second at most."""
    credentials = opened(file, clocks)
    file.write_text(line("new", b"token-of-new", "read"))
    assert let_in(credentials, b"Bearer token-of-shop") == "shop"
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") is None
    assert let_in(credentials, b"Bearer token-of-new") == "new"


def test_change_that_leaves_size_and_times_alone_counts(file: Path, clocks: Clocks) -> None:
    """The bytes are compared: a withdrawn token must not live on because of a coarse clock of the file system."""
    credentials = opened(file, clocks)
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(digest_of(b"token-of-shop").hex().encode(), digest_of(b"x").hex().encode()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") is None


@pytest.mark.parametrize("content", ["", "shop invoke sha256:00\n", "garbage \xff", None])
def test_broken_file_keeps_what_was_and_says_so_once(file: Path, clocks: Clocks, content: str | None) -> None:
    """Half-written, misspelt or missing: the old credentials hold, an error names the file, and a repaired one counts."""
    credentials = opened(file, clocks)
    good = file.read_text()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with capture_logs() as logs:
        for _ in range(3):
            clocks.pass_s(RELOAD_S)
            assert let_in(credentials, b"Bearer token-of-shop") == "shop"
    assert [entry["event"] for entry in logs] == ["token_file_refused"]
    assert logs[0]["log_level"] == "error"
    assert str(file) in str(logs[0])
    assert content != "shop invoke sha256:00\n" or "line 1" in logs[0]["problem"]
    assert credentials.describe()["problem"] == logs[0]["problem"]
    file.write_text(good.replace("shop", "store"))
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") == "store"
    assert "problem" not in credentials.describe()


def test_refused_file_is_seen_in_status_and_metrics(file: Path, clocks: Clocks) -> None:
    """An operator who looks at neither log nor file sees that tokens of before are in use."""
    service = Service(Settings(token_file=file))
    service.gatekeeper = credentials = opened(file, clocks)
    assert not service.front.token_file_refused()
    file.write_text("half")
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") == "shop"
    assert service.front.token_file_refused()
    service.close()


def test_list_of_nobody_lets_nobody_in(file: Path, clocks: Clocks) -> None:
    """When the last credential is removed, it is removed."""
    credentials = opened(file, clocks)
    file.write_text("# nobody\n")
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") is None


def test_expired_token_is_refused_from_its_second_on(file: Path, clocks: Clocks) -> None:
    """Before it, it works; the other credential goes on."""
    credentials = opened(file, clocks)
    clocks.pass_s(999.9)
    assert let_in(credentials, b"Bearer token-of-guest") == "guest"
    clocks.pass_s(0.1)
    assert let_in(credentials, b"Bearer token-of-guest") is None
    assert let_in(credentials, b"Bearer token-of-shop") == "shop"


@pytest.mark.parametrize("jump_s", [-1, -3600, -86_400, -1_800_000_000])
def test_expired_token_stays_expired_when_the_clock_goes_back(file: Path, clocks: Clocks, jump_s: float) -> None:
    """A clock that was set back, an hour or to 1970, brings nothing back."""
    credentials = opened(file, clocks)
    clocks.pass_s(1000)
    assert let_in(credentials, b"Bearer token-of-guest") is None
    clocks.wall += jump_s
    for _ in range(3):
        clocks.pass_s(10)
        assert let_in(credentials, b"Bearer token-of-guest") is None


def test_clock_that_goes_back_first_does_not_lengthen_a_life(file: Path, clocks: Clocks) -> None:
    """Time goes on at least as fast as the machine runs, whatever the wall clock is set to."""
    credentials = opened(file, clocks)
    clocks.wall -= 86_400
    clocks.pass_s(999)
    assert let_in(credentials, b"Bearer token-of-guest") == "guest"
    clocks.pass_s(1)
    assert let_in(credentials, b"Bearer token-of-guest") is None


def test_jump_ahead_expires_and_is_not_taken_back(file: Path, clocks: Clocks) -> None:
    """Seen once as passed, an expiry has passed: doubt keeps out."""
    credentials = opened(file, clocks)
    clocks.wall += 10_000
    assert let_in(credentials, b"Bearer token-of-guest") is None
    clocks.wall -= 10_000
    assert let_in(credentials, b"Bearer token-of-guest") is None


def test_request_that_lasts_notices_withdrawal_and_expiry(file: Path, clocks: Clocks) -> None:
    """`check` refuses a credential that was let in and is gone, has fewer roles, or has expired since."""
    credentials = opened(file, clocks)
    shop, guest = credentials.authenticate(b"Bearer token-of-shop"), credentials.authenticate(b"Bearer token-of-guest")
    credentials.check(shop)
    clocks.pass_s(1000)
    credentials.check(shop)
    with pytest.raises(Problem):
        credentials.check(guest)
    file.write_text(line("shop", b"token-of-shop", "read"))
    clocks.pass_s(RELOAD_S)
    with pytest.raises(Problem):
        credentials.check(shop)


@pytest.mark.parametrize("text", ["", "short", "# nobody\n", "shop invoke\n", "a b c\n"])
def test_file_that_lets_nobody_in_is_refused_at_start(tmp_path: Path, text: str) -> None:
    """The setting is named, and the file."""
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(BadSetting, match=r"token_file: .*tokens"):
        Credentials(tmp_path / "tokens")
    with pytest.raises(BadSetting, match=r"token_file: .*none"):
        Credentials(tmp_path / "none")
    with pytest.raises(BadSetting, match="token_file"):
        Credentials(tmp_path)


def test_file_that_others_may_write_keeps_what_was(file: Path, clocks: Clocks) -> None:
    """At a start it admits nobody; while the server runs, what it holds then counts for nothing until that is mended."""
    credentials = opened(file, clocks)
    file.write_text(line("shop", b"token-of-shop", "invoke") + line("evil", b"token-of-evil", "admin"))
    file.chmod(0o666)
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-shop") == "shop"
    assert let_in(credentials, b"Bearer token-of-evil") is None
    assert "0666" in credentials.describe()["problem"]
    with pytest.raises(BadSetting, match="other users may write"):
        opened(file, clocks)
    file.chmod(0o600)
    clocks.pass_s(RELOAD_S)
    assert let_in(credentials, b"Bearer token-of-evil") == "evil"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_file_that_others_may_read_is_warned_of(file: Path, clocks: Clocks, mode: int, warned: bool) -> None:
    """Hashes are no tokens, but names and roles are nobody's business."""
    file.chmod(mode)
    with capture_logs() as logs:
        opened(file, clocks)
    assert [entry["event"] for entry in logs] == ["token_file_open_to_others"] * warned


def test_without_a_file_everybody_is_default_and_the_owner_has_all_roles() -> None:
    """On loopback alone; the scope of keys stays when a token file comes later. Only the local token admits to `admin`."""
    gatekeeper = make_gatekeeper(None)
    assert isinstance(gatekeeper, LocalCallers)
    assert not gatekeeper.required
    anybody, token = gatekeeper.authenticate(None), gatekeeper.token.encode()
    gatekeeper.check(anybody)
    assert anybody.roles == LOCAL_ROLES
    owner = gatekeeper.authenticate(b"Bearer " + token)
    assert owner.roles == {"read", "invoke", "admin"}
    for header in (b"", b"Bearer", b"Bearer " + token[:-1], b"Basic " + token, token, b"Bearer " + digest_of(token)):
        assert gatekeeper.authenticate(header) is anybody, header
    assert scope_of(anybody) == scope_of(owner) == scope_of(Credential("default", frozenset(), b"x")) == ""
    assert scope_of(Credential("shop", frozenset(), b"x")) == "shop"


def test_the_local_token_is_another_one_at_every_start_and_gone_after_it(tmp_path: Path) -> None:
    """One file of mode 0600, whatever stood there and whatever the umask is; a full disk costs the token, not the start."""
    path, elsewhere = tmp_path / LOCAL_TOKEN_NAME, tmp_path / "elsewhere"
    path.symlink_to(elsewhere)
    seen = []
    before = os.umask(0)
    try:
        for _ in range(2):
            gatekeeper = LocalCallers()
            with gatekeeper.shown_to_owner(str(tmp_path)):
                assert stat.S_IMODE(path.lstat().st_mode) == 0o600
                assert path.read_text() == f"{gatekeeper.token}\n"
                seen.append(gatekeeper.token)
            assert not path.exists()
    finally:
        os.umask(before)
    assert len(set(seen)) == 2
    assert not elsewhere.exists()
    with capture_logs() as logs, LocalCallers().shown_to_owner(str(tmp_path / "missing")):
        assert [entry["event"] for entry in logs] == ["local_token_not_written"]
