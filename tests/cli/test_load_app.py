"""An application is found by its name, or the message says what is missing."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.cli.cli_errors import CodeMissing, CommandFailed, explain
from cmdlog.cli.load_app import load_application
from cmdlog.hidden_packages import PackageHidden
from procedures import DefinitionError

SHOP = "from procedures import Database\n\n\nclass Holder:\n    db = Database('shop')\n\n\ndb = Holder.db\nother = 7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with an application, forgotten afterwards."""
    (tmp_path / "shop_of_test.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]  # and no other: half of the program imported twice would not know its own classes


@pytest.mark.parametrize("name", ["shop_of_test:db", "shop_of_test:Holder.db"])
def test_application_of_the_current_directory_is_found(folder: Path, name: str) -> None:
    """No installation and no PYTHONPATH is needed for a file that lies here."""
    assert load_application(name).name == "shop"


@pytest.mark.parametrize("name", ["shop_of_test", ":db", "shop_of_test:", ""])
def test_name_without_both_parts_is_a_usage_error(name: str) -> None:
    """No code is missing: exit code 2, and how an application is named."""
    with pytest.raises(CommandFailed, match="module:attribute") as refused:
        load_application(name)
    assert not isinstance(refused.value, CodeMissing)
    assert (refused.value.exit_code, "shop:db" in refused.value.hint) == (2, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop_of_tset:db", "there is no module shop_of_tset"),
        ("shop_of_test.sub:db", "there is no module shop_of_test.sub"),
        ("shop_of_test:dp", "has no dp"),
        ("shop_of_test:other", "is a int, not a Database"),
        ("needs_more:db", "needs a module that is not installed: no_such_package"),
        ("fails:db", "ZeroDivisionError"),
        ("typo:db", "SyntaxError"),
        ("..:db", "cannot be imported"),
    ],
)
def test_missing_code_is_named(folder: Path, name: str, says: str) -> None:
    """Whatever keeps the application from being loaded ends with exit code 13 and the reason."""
    (folder / "needs_more.py").write_text("import no_such_package\n")
    (folder / "fails.py").write_text("db = 1 / 0\n")
    (folder / "typo.py").write_text("db = (\n")
    with pytest.raises(CodeMissing) as refused:
        load_application(name)
    failure = explain(refused.value)
    assert failure is not None
    assert failure.exit_code == 13
    assert says in failure.message
    assert failure.hint


def test_declaration_that_cannot_be_replayed_keeps_its_own_message(folder: Path) -> None:
    """The application's own mistakes are not disguised as missing code."""
    (folder / "wrong.py").write_text("from procedures import Database\ndb = Database('Not A Name')\n")
    with pytest.raises(DefinitionError):
        load_application("wrong:db")


def test_module_that_hides_a_package_is_named_before_it_is_imported(folder: Path) -> None:
    """What this program has not imported yet would be found in the application's folder, or not at all."""
    (folder / "snapshot.py").touch()
    with pytest.raises(PackageHidden, match=r"snapshot\.py hides"):
        load_application("shop_of_test:db")
    assert str(folder) not in sys.path


def test_module_that_ends_the_program_is_refused(folder: Path) -> None:
    """Its exit code is not ours, and a command that ends without a word has said nothing."""
    (folder / "script.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(CodeMissing, match=r"script ends the program while it is imported: sys\.exit\(0\)"):
        load_application("script:db")


def test_module_with_the_name_of_pythons_own_gets_another_name(folder: Path) -> None:
    """The hint says whose module was found."""
    (folder / "queue.py").write_text(SHOP)
    with pytest.raises(CodeMissing, match="module queue has no db") as refused:
        load_application("queue:db")
    assert refused.value.hint.startswith("queue is a module of Python's own (")


def test_name_of_a_file_gets_the_name_of_its_module(folder: Path) -> None:
    """The hint says what to write."""
    with pytest.raises(CodeMissing, match="there is no module") as refused:
        load_application("shop_of_test.py:db")
    assert refused.value.hint == "write the name of a module without .py: shop_of_test"
