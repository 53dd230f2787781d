"""The token file: what each line means, and that nothing else is let pass."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.api.gate.token_file import (
    CREDENTIALS_MAX,
    BadTokenFile,
    Credential,
    digest_of,
    make_token,
    parse_file,
    read_file,
    read_time,
    write_line,
)

HASH = hashlib.sha256(b"a token").hexdigest()
TOKEN = "cmdlog_" + "9aZ_-" * 9  # of the form that `make_token` gives, and the same in each process of the tests


def test_lines_comments_and_spaces() -> None:
    """A credential a line, words apart by blanks; comments and blank lines do not count."""
    text = (
        f"# head\n\n  # more\n\tshop \t invoke,read   sha256:{HASH}   2027-01-31T12:00:00+01:00  \nroot admin sha256:{'0' * 64}\n"
    )
    shop, root = parse_file(text.encode()).credentials
    assert shop == Credential("shop", frozenset(("invoke", "read")), digest_of(b"a token"), read_time("2027-01-31T11:00:00Z"))
    assert root.roles == {"read", "invoke", "admin"}  # admin brings the others along
    assert root.expires_s is None


WHOLE = f"# head\nfirst-of-sixteen admin sha256:{HASH} 2027-01-31T00:00:00Z\nshop read sha256:{'0' * 64}\n"


def test_a_file_that_was_cut_admits_nobody_more() -> None:
    """After any byte: it is refused, or holds whole lines of the file, each with its end of validity."""
    whole = parse_file(WHOLE.encode()).credentials
    for size in range(len(WHOLE)):
        try:
            held = parse_file(WHOLE[:size].encode()).credentials
        except BadTokenFile:
            continue
        assert held == whole[: len(held)]
        assert WHOLE[size - 1] == "\n"


@pytest.mark.parametrize(
    "word", ["sixteen-letters!", f"sha256:{HASH}", HASH, TOKEN, "https://example.com/tokens", "first-of-sixteen", "shop"]
)
def test_one_word_is_no_credential(word: str) -> None:
    """Neither a hash nor an address nor a name, nor a token itself: it would be one with all roles."""
    for text in (word, f"{word}\n", f"# a comment\n{word}\n"):
        with pytest.raises(BadTokenFile) as refused:
            parse_file(text.encode())
        assert word not in str(refused.value) or word == "shop"


@pytest.mark.parametrize("end", ["\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\0", "\x1b", "\x7f"])
def test_a_line_feed_alone_ends_a_line(end: str) -> None:
    """What an editor shows as one line, a comment say, holds no second one."""
    with pytest.raises(BadTokenFile) as refused:
        parse_file(f"# head\n# note{end}root admin sha256:{HASH}\n".encode())
    assert refused.value.line == 2


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o644, False), (0o660, True), (0o606, True), (0o622, True)])
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int, *, refused: bool) -> None:
    """Whoever may write it may let himself in."""
    path = tmp_path / "tokens"
    path.write_text(WHOLE)
    path.chmod(mode)
    with pytest.raises(BadTokenFile, match=f"{mode:04o}") if refused else nullcontext():
        assert read_file(path) == WHOLE.encode()


def test_comments_alone_are_a_list_of_nobody() -> None:
    """Told apart from an empty file, which may be half written."""
    assert parse_file(b"# nobody\n").credentials == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        (" \n\n", 0),
        ("short", 1),
        (f"ok read sha256:{HASH}\nfoo", 2),
        (f"ok read sha256:{HASH}\nfoo read", 2),
        (f"shop read sha256:{HASH} 2027-01-31T00:00:00Z more", 1),
        (f"shop read sha256:{HASH[:-1]}", 1),
        (f"shop read sha256:{HASH}0", 1),
        (f"shop read sha256:{HASH.upper()}", 1),
        (f"shop read {HASH}", 1),
        (f"shop read md5:{HASH}", 1),
        (f"shop write sha256:{HASH}", 1),
        (f"shop read, sha256:{HASH}", 1),
        (f"shop , sha256:{HASH}", 1),
        (f"shop READ sha256:{HASH}", 1),
        (f"sh/op read sha256:{HASH}", 1),
        (f"{'x' * 64} read sha256:{HASH}", 1),
        (f"shop read sha256:{HASH} soon", 1),
        (f"shop read sha256:{HASH} 2027-01-31", 1),
        (f"shop read sha256:{HASH} 2027-03-31T00:00:00", 1),
        (f"shop read sha256:{HASH} 2027-02-30T00:00:00Z", 1),
        (f"shop read sha256:{HASH} 0001-01-01T00:00:00+23:59", 1),
        (f"a read sha256:{HASH}\n\n# x\nb read sha256:{HASH}", 4),
        ("# x\ncaf\u00e9 read", 2),
        ("x" * 70_000, 0),
        ("\n".join(f"n read sha256:{number:064x}" for number in range(CREDENTIALS_MAX + 1)), 0),
    ],
)
def test_line_that_is_not_understood_is_named(text: str, line: int) -> None:
    """The error names the line and the problem, and shows no word of it: one might be a token in the wrong place."""
    with pytest.raises(BadTokenFile) as refused:
        parse_file(f"{text}\n".encode())
    assert refused.value.line == line
    assert not any(word in str(refused.value) for word in text.split() if len(word) > 11)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}", fullmatch=True),
    st.sampled_from([("read",), ("invoke",), ("read", "invoke"), ("read", "invoke", "admin")]),
    st.binary(min_size=32, max_size=32),
    st.none() | st.integers(0, 250_000_000_000).map(float),
)
def test_line_is_read_as_it_was_written(name: str, roles: tuple[str, ...], digest: bytes, expires_s: float | None) -> None:
    """Every credential survives its own line."""
    credential = Credential(name, frozenset(roles), digest, expires_s)
    assert parse_file(f"{write_line(credential)}\n".encode()).credentials == (credential,)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_or_a_bad_file(data: bytes) -> None:
    """Nothing else comes out of the parser."""
    try:
        held = parse_file(data)
    except BadTokenFile:
        return
    assert len(held.credentials) <= CREDENTIALS_MAX


def test_tokens_are_never_the_same() -> None:
    """256 bits of chance each."""
    assert len({make_token() for _ in range(1000)}) == 1000
