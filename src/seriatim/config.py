"""One configuration for every command and front.

A value comes from the first of these that sets it:

1. the command line;
2. the environment, ``SERIATIM_<KEY>``;
3. one TOML file: the one named by ``--config`` or ``SERIATIM_CONFIG``, else ``seriatim.toml`` in the working directory, else
   ``seriatim/config.toml`` in the user's configuration folder (``$XDG_CONFIG_HOME``, or ``~/.config``);
4. the default.

An unknown key is an error, wherever it is: a misspelt setting that is silently ignored is worse.
Nothing is read when this module is imported, only when :func:`load` is called.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from seriatim.errors import FailedPrecondition, InvalidArgument, NotFound

ENVIRONMENT_PREFIX = "SERIATIM_"
FILE_VARIABLE = "SERIATIM_CONFIG"
OTHER_PREFIXES = ("SERIATIM_KAFKA_", "SERIATIM_STATE_COPIES")
"""How variables begin that are no settings: they are read where they are used."""
LOCAL_FILE = "seriatim.toml"

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_TYPE_NAMES = {str: "a string", bool: "true or false"}


def _setting(default: str | bool, help: str, choices: tuple[str, ...] = (), *, secret: bool = False) -> Any:  # noqa: A002
    return field(default=default, repr=not secret, metadata={"help": help, "choices": choices, "secret": secret})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, with its default."""

    store: str = _setting("sqlite:///seriatim.db", "the store with topics, messages and subscriptions")
    log_level: str = _setting("warning", "log entries of this level and above are shown", LOG_LEVELS)
    log_format: str = _setting("text", "the format of log entries on standard error", LOG_FORMATS)
    progress: bool = _setting(True, "show the progress of long work on a terminal")
    console_token: str = _setting("", "the token for the admin API, if its address has none", secret=True)
    console_ca: str = _setting("", "a file with the certificates that the admin API is trusted by, if not the system's")
    mqtt_password: str = _setting("", "the password for the MQTT broker, if its address has none", secret=True)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and where each of its values came from."""

    values: Config
    origins: Mapping[str, str]


def load(
    path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> LoadedConfig:
    """Read the configuration; ``path`` and ``overrides`` come from the command line."""
    environ = os.environ if environ is None else environ
    try:
        file = _find_file(path, environ, directory or Path())
        settings = _read_file(file) if file else {}
    except OSError as error:
        raise FailedPrecondition(
            f"the configuration file '{error.filename}' can't be read ({error.strerror}): correct the permissions of the file "
            f"and of its folders, or name another one with --config or {FILE_VARIABLE}"
        ) from error
    # In order of precedence: each source overrides those before it.
    sources = {
        f"file {file}": settings,
        "environment": _read_environment(environ),
        "command line": {key: value for key, value in (overrides or {}).items() if value is not None},
    }
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_SETTINGS, "default")
    for origin, found in sources.items():
        for key, value in found.items():
            name = _variable(key) if origin == "environment" else key
            values[key] = _checked(key, value, f"{origin}, {name}")
            origins[key] = origin
    return LoadedConfig(Config(**values), origins)


def describe(key: str) -> str:
    """A short description of a setting."""
    return str(_SETTINGS[key].metadata["help"])


def is_secret(key: str) -> bool:
    """Whether the value of a setting must be hidden."""
    return bool(_SETTINGS[key].metadata["secret"])


def _find_file(path: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    named = path or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if named is not None:
        if not named.is_file():
            raise NotFound(
                f"there is no configuration file '{named}'; create it, or correct --config or {FILE_VARIABLE}"
            )
        return named
    known = directory / LOCAL_FILE, *_user_file(environ)
    return next((file for file in known if file.is_file()), None)


def _user_file(environ: Mapping[str, str]) -> Iterator[Path]:
    """Nothing for a user without a home, as in some containers."""
    folder = Path(environ.get("XDG_CONFIG_HOME", ""))
    with suppress(RuntimeError):
        # The XDG specification says to ignore a relative path.
        yield (folder if folder.is_absolute() else Path.home() / ".config") / "seriatim" / "config.toml"


def _read_file(path: Path) -> dict[str, object]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the configuration file '{path}' is not valid TOML: {error}") from error
    for key in found:
        if key not in _SETTINGS:
            raise InvalidArgument(f"file {path}: unknown key '{key}'{_nearest(key, _SETTINGS)}")
    return found


def _read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    known = {_variable(key): key for key in _SETTINGS}
    found: dict[str, object] = {}
    for name, text in environ.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name == FILE_VARIABLE or name.startswith(OTHER_PREFIXES):
            continue
        if name not in known:
            raise InvalidArgument(f"environment: unknown variable {name}{_nearest(name, [*known, FILE_VARIABLE])}")
        if text:  # an empty variable counts as not set, as usual in shells
            key = known[name]
            found[key] = _BOOLEANS.get(text.lower(), text) if isinstance(_SETTINGS[key].default, bool) else text
    return found


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper()


def _checked(key: str, value: object, where: str) -> str | bool:
    setting = _SETTINGS[key]
    kind = bool if isinstance(setting.default, bool) else str
    if not isinstance(value, kind):
        shown = type(value).__name__ if is_secret(key) else repr(value)
        raise InvalidArgument(f"{where}: must be {_TYPE_NAMES[kind]}, not {shown}")
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise InvalidArgument(f"{where}: must be one of {', '.join(choices)}, not {value!r}")
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; known are: {', '.join(sorted(known))}"


_SETTINGS: dict[str, Field[Any]] = {setting.name: setting for setting in fields(Config)}
