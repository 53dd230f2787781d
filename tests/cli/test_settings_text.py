"""The node's settings as people read them; that `cmdlog.toml` is read back is in `test_files.py`."""

from __future__ import annotations

import re

from cmdlog.cli.server.settings_text import describe, settings_table, settings_toml
from cmdlog.node.settings import TABLE


def test_every_setting_is_in_help_table_and_example() -> None:
    """With its reason in each, and with its default as people write it."""
    for name, setting in TABLE.items():
        assert setting.reason in describe(setting)
        assert f"| `{name}`" in settings_table()
        assert f"\n#{name} = " in settings_toml()
    assert re.search(r'^#segment_bytes = "\d+ [MG]iB"$', settings_toml(), re.MULTILINE)


def test_what_is_fixed_at_creation_says_so() -> None:
    """In the line of help and in the example."""
    partitions = TABLE["partitions"]
    assert partitions.at_creation
    assert "fixed when the directory is created" in describe(partitions)
    assert "fixed when the directory is made" in settings_toml().split("#partitions = ")[0].splitlines()[-1]
