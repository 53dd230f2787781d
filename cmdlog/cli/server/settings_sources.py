"""Where the values of the node's settings come from, and how text becomes one of them.

One rule: a typo or a bad value is refused at start and names the key, where it came from and the nearest known one.

A container platform sets variables for a service that is named like the program (`cmdlog`, `cmdlog-headless`): these
service links look like settings of ours, and are none.

Order: flag, then environment `CMDLOG_<NAME>`, then `cmdlog.toml` (the one given, else in the data directory, else in the current
directory), then the default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cmdlog.built_module import SWITCH
from cmdlog.node.settings import SIZE_UNITS, TABLE, BadSetting, SettingRow, Settings, check_value, fitted, known_setting

ENVIRONMENT_PREFIX: Final = "CMDLOG_"
CONFIG_NAME: Final = "cmdlog.toml"
COMMAND_LINE: Final = (
    "CMDLOG_APP", "CMDLOG_CA_FILE", "CMDLOG_CERT_FILE", "CMDLOG_CONFIG", "CMDLOG_DATA", "CMDLOG_TOKEN", "CMDLOG_URL",
)  # fmt: skip
OTHER_VARIABLES: Final = (*COMMAND_LINE, SWITCH)
"""Variables that the command line or the modules in C read for themselves; they are no settings of the node."""

SERVICE_LINK: Final = re.compile(r"CMDLOG_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
LINKED_PORT: Final = re.compile(r"CMDLOG_(\w+_)?PORT")  # whose value is then an address
ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")

SIZE: Final = re.compile(r"(\d+)\s*(|KiB|MiB|GiB)")
TRUTHS: Final = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

# Each source yields (setting's name, value, where it came from, as an operator would look for it).
Given = Iterator[tuple[str, Any, str]]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str],
    config: Path | None = None,
    data_dir: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from flags (None = not given), environment and cmdlog.toml; `defaults` in place of some of the table's.

    Raises: BadSetting.
    """
    given: dict[str, tuple[Any, str]] = {}  # a value that another source overrides is not looked at
    for source in (
        _from_flags(defaults or {}),
        _from_config(config, data_dir),
        _from_environment(environ),
        _from_flags(flags or {}),
    ):
        given |= {name: (text, origin) for name, text, origin in source}
    return Settings(**fitted({name: _convert(TABLE[name], text, origin) for name, (text, origin) in given.items()}))


def service_links(environ: Mapping[str, str]) -> list[str]:
    """The variables that a container platform has set for a service; they are ignored."""
    return [name for name in sorted(environ) if _is_service_link(name, environ[name])]


def report_service_links(environ: Mapping[str, str]) -> None:
    """One line of the log, if there are any."""
    if links := service_links(environ):
        import structlog

        why = "a container platform sets them for a service of this name; they are no settings"
        structlog.get_logger("cmdlog.cli").info("service_links_ignored", variables=links, why=why)


def _is_service_link(name: str, value: str) -> bool:
    return bool(SERVICE_LINK.fullmatch(name) or (LINKED_PORT.fullmatch(name) and ADDRESS.fullmatch(value)))


def _from_flags(flags: Mapping[str, Any]) -> Given:
    for name, value in flags.items():
        if value is not None:
            origin = "--" + name.replace("_", "-")
            yield known_setting(name, origin, lambda near: "--" + near.replace("_", "-")), value, origin


def _from_environment(environ: Mapping[str, str]) -> Given:
    for variable in sorted(environ):
        is_ours = variable.startswith(ENVIRONMENT_PREFIX) and variable not in OTHER_VARIABLES
        if is_ours and not _is_service_link(variable, environ[variable]):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            yield known_setting(name, variable, lambda near: ENVIRONMENT_PREFIX + near.upper()), environ[variable], variable


def _from_config(config: Path | None, data_dir: Path | None) -> Given:
    path = config or next((p for p in _config_places(data_dir) if p.is_file()), None)
    if path is None:
        return
    try:
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(str(path), f"is not TOML: {error}") from error
    for name, value in held.items():
        origin = f"{name} in {path}"
        yield known_setting(name, origin, str), value, origin


def _config_places(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield data_dir / CONFIG_NAME
    yield Path(CONFIG_NAME)


def _convert(setting: SettingRow, value: Any, origin: str) -> Any:
    """The value in the setting's type; text (of a flag or variable) is parsed, other types are only checked."""
    if isinstance(value, str):
        if not (text := value.strip()):
            raise BadSetting(origin, "is empty; leave it out for the default")
        value = _parse(setting, text, origin)
    if setting.kind == "float" and type(value) is int:
        value = float(value)
    check_value(setting, value, origin)
    return value


def _parse(setting: SettingRow, text: str, origin: str) -> Any:
    if setting.kind == "path":
        return Path(text)
    if setting.kind in ("text", "choice"):
        return text
    if setting.kind == "bool":
        if text.lower() not in TRUTHS:
            raise BadSetting(origin, f"{text!r} is neither true nor false")
        return TRUTHS[text.lower()]
    if setting.unit == "bytes" and (size := SIZE.fullmatch(text)):
        return int(size[1]) * SIZE_UNITS[size[2]]
    try:
        return int(text) if setting.kind == "int" else float(text)
    except ValueError:
        wanted = "a whole number" if setting.kind == "int" else "a number"
        also = ", or with KiB, MiB or GiB" if setting.unit == "bytes" else ""
        raise BadSetting(origin, f"{text!r} is not {wanted}{' of ' + setting.unit if setting.unit else ''}{also}") from None
