"""Which machine this is, and which boot of it."""

from pathlib import Path

import pytest

from cmdlog.wal.system import machine


@pytest.mark.parametrize("held", [None, "", "uninitialized\n", "A" * 32, "a" * 31])
def test_machine_without_an_id_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str | None) -> None:
    """A container's image has no machine id, or a word in its place: it is no machine that could be told from another."""
    monkeypatch.setattr(machine, "MACHINE_ID_PATH", tmp_path / "machine-id")
    if held is not None:
        (tmp_path / "machine-id").write_text(held)
    assert machine.read_machine_id() == ""


def test_machine_id_is_shown_as_a_hash_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same id has the same short hash, another one another, and neither shows the id."""
    monkeypatch.setattr(machine, "MACHINE_ID_PATH", tmp_path / "machine-id")
    seen = []
    for held in ("a" * 32, "b" * 32, "a" * 32 + "\n"):
        (tmp_path / "machine-id").write_text(held)
        seen.append(machine.read_machine_id())
    assert seen[0] == seen[2] != seen[1]
    assert [len(shown) for shown in seen] == [16, 16, 16]
    assert "aaaa" not in seen[0]


def test_boot_without_an_id_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not say it every start is taken for a boot."""
    monkeypatch.setattr(machine, "BOOT_ID_PATH", tmp_path / "boot_id")
    assert machine.read_boot_id() == ""
    (tmp_path / "boot_id").write_text("3f1c\n")
    assert machine.read_boot_id() == "3f1c"
