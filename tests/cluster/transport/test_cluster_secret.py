"""The file of the cluster's secret: hexadecimal or raw, for its owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.cluster.transport.cluster_secret import BadSecret, new_secret_text, read_secret


def secret_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    """A file with this mode, whatever the umask is."""
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"00ff" * 8 + b"\n", b"\x00\xff" * 8),
        (b"ABcd" * 8, b"\xab\xcd" * 8),
        (b"00ff" * 32 + b"\r\n", b"\x00\xff" * 32),
        (b"sixteen bytes!!!", b"sixteen bytes!!!"),
        (b"sixteen bytes!!!\n", b"sixteen bytes!!!"),
        (b"\x00" * 64, b"\x00" * 64),
        (b"0123456789abcdef", b"0123456789abcdef"),  # too short for hexadecimal: 16 bytes as they are
        (b"0123456789abcdef0123456789abcdefx", b"0123456789abcdef0123456789abcdefx"),
    ],
)
def test_secrets_are_read(tmp_path: Path, content: bytes, key: bytes) -> None:
    """Hexadecimal where it can be meant so, raw bytes where not; a line end does not count."""
    assert read_secret(secret_file(tmp_path, content)).key == key


def test_a_new_secret_can_be_read(tmp_path: Path) -> None:
    """And no two are alike."""
    text = new_secret_text()
    assert len(read_secret(secret_file(tmp_path, text.encode())).key) == 32
    assert text != new_secret_text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever holds the secret is a node of the cluster; the error says what to do."""
    with pytest.raises(BadSecret, match=f"mode {mode:03o}") as refused:
        read_secret(secret_file(tmp_path, b"x" * 32, mode))
    assert "chmod 600" in refused.value.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "0 bytes"), (b"short\n", "5 bytes"), (b"x" * 65, "65 bytes"), (b"ab" * 65, "65 bytes"), (b"z" * 9999, "more than")],
)
def test_a_secret_of_another_size_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """A short one can be guessed; a long one is no key."""
    with pytest.raises(BadSecret, match=said):
        read_secret(secret_file(tmp_path, content))


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    """And says how to make one."""
    with pytest.raises(BadSecret, match="absent") as refused:
        read_secret(tmp_path / "absent")
    assert "openssl rand" in refused.value.hint
