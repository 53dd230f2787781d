"""Foreign files of SQLite: nothing that their schema names is executed, beyond what SQLite holds for harmless."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from procedures.storage.state import open_reader
from procedures.storage.state_file import connect
from snapshot.table_digest import open_image


@pytest.mark.parametrize("opens", [connect, open_image, lambda path: open_reader(path)[0]], ids=["any", "image", "state"])
def test_a_schema_calls_no_function_that_could_harm(tmp_path: Path, opens: object) -> None:
    """A view of a foreign file must not do what a statement of ours may."""
    assert callable(opens)
    path = tmp_path / "foreign.sqlite"
    with closing(apsw.Connection(str(path))) as made:
        made.execute("CREATE VIEW v AS SELECT harm() AS x")
    with closing(opens(path)) as connection:
        connection.create_scalar_function("harm", lambda: 1, 0)
        assert connection.execute("SELECT harm()").get == 1
        with pytest.raises(apsw.SQLError, match="unsafe use of harm"):
            connection.execute("SELECT x FROM v").fetchall()
