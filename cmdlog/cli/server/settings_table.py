"""The node's settings as people read them: a line of help, a table of Markdown, an example of `cmdlog.toml`."""

from __future__ import annotations

import math
import sys
import textwrap
from pathlib import Path
from typing import Any

from cmdlog.node.settings import SIZE_UNITS, TABLE, SettingRow


def describe(setting: SettingRow) -> str:
    """One line for help texts: reason, default, and whether it is fixed at creation."""
    fixed = "; fixed when the directory is created" if setting.at_creation else ""
    return f"{setting.reason} [default: {_shown(setting.default, setting.unit)}{fixed}]"


def settings_table() -> str:
    """Every setting as a row of Markdown; RUNNING.md holds it, `python -m cmdlog.cli.server.settings_table` prints it."""
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in TABLE.values():
        name = f"`{setting.name}`" + (" †" if setting.at_creation else "")
        lines.append(f"| {name} | {_shown(setting.default, setting.unit)} | {_allowed(setting)} | {setting.reason} |")
    return "\n".join(lines) + "\n"


def settings_toml() -> str:
    """Every setting as a commented-out line of `cmdlog.toml`, with its default, what is allowed and what it means."""
    lines = [
        "# Settings of a cmdlog server. Remove the # of a line to change it; what is left out has the default shown.",
        "# A flag (--partitions) and the environment (CMDLOG_PARTITIONS) count more than this file.",
    ]
    for setting in TABLE.values():
        fixed = "; fixed when the directory is made" if setting.at_creation else ""
        lines += ["", *textwrap.wrap(setting.reason, 100, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"# ({_allowed(setting)}{fixed})", f"#{setting.name} = {_toml_value(setting)}"]
    return "\n".join(lines) + "\n"


def _toml_value(setting: SettingRow) -> str:
    """The default; for a setting without one, an example of its type."""
    least = max(setting.lowest, 1)
    examples = {"path": "/etc/cmdlog/file.pem", "int": int(least), "float": float(least)}
    default = examples.get(setting.kind, "") if setting.default is None else setting.default
    if isinstance(default, bool):
        return str(default).lower()
    if setting.unit == "bytes" and isinstance(default, int) and default:
        return f'"{_shown(default, "bytes")}"' if default % SIZE_UNITS["KiB"] == 0 else str(default)
    return f'"{default}"' if isinstance(default, str | Path) else repr(default)


def _allowed(setting: SettingRow) -> str:
    if setting.kind not in ("int", "float"):
        return ", ".join(setting.choices) or {"bool": "true, false", "path": "a file", "text": "an address"}[setting.kind]
    low, high = (_shown(bound, setting.unit if setting.unit == "bytes" else "") for bound in (setting.lowest, setting.highest))
    return f"{low} to {high}" if setting.highest < math.inf else f"at least {low}"


def _shown(value: Any, unit: str) -> str:
    """A value with its unit, as people write it."""
    if value is None or isinstance(value, bool | str):
        return "none" if value is None else str(value).lower()
    for larger in ("GiB", "MiB", "KiB") if unit == "bytes" and value else ():
        if value % SIZE_UNITS[larger] == 0:
            return f"{value // SIZE_UNITS[larger]} {larger}"
    text = f"{value:,}" if isinstance(value, int) and value >= 100_000 else f"{value:g}"
    return f"{text} {unit}" if unit and value else text


if __name__ == "__main__":
    sys.stdout.write(settings_table())
