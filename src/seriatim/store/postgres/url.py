"""The URL of a PostgreSQL store: our parameters, PostgreSQL's parameters, and secrets.

``postgresql://user@host:port/database?schema=…&lease=…&stall_timeout=…``. All other parameters (``sslmode``,
``application_name``, …) are those of PostgreSQL's own client library and go to it as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from urllib.parse import parse_qsl, quote, urlencode

from seriatim.errors import InvalidArgument

SCHEMES = ("postgresql://", "postgres://")
SCHEMA = "seriatim"
LEASE = 10.0
STALL_TIMEOUT_S = 30.0

# A server or network that is silent for half a minute is considered dead. The URL may set longer times.
CONNECTION_DEFAULTS = {
    "application_name": "seriatim",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}

NO_ADDRESS = (
    "this is not a PostgreSQL address, or it has an unknown parameter: write postgresql://user@host:port/database, "
    "and the characters @ / ? : of a password as %40 %2F %3F %3A"
)
"""It does not quote the URL, because any part of it may be part of a password."""

_OUR_PARAMETERS = frozenset({"schema", "lease", "stall_timeout"})
_SECRET = re.compile(r"(//[^/?:]*):.*@")
_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "key_password", "token"})


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A parsed URL."""

    public: str
    """The URL without secrets."""

    conninfo: str
    """What PostgreSQL's library connects with, including secrets: never shown."""

    schema: str
    lease: float
    """Seconds after which an owner that does not renew its lease may be replaced."""

    stall_timeout: float
    """Seconds after which a transaction of the owner that makes no progress is ended."""

    def __repr__(self) -> str:
        return f"PostgresUrl({self.public!r})"

    @classmethod
    def parse(cls, url: str) -> PostgresUrl:
        head, _, query = url.partition("?")
        parameters = _parameters(query)
        if parameters is None or "@" in head.partition("//")[2].partition("/")[2]:
            raise InvalidArgument(NO_ADDRESS)
        theirs = {name: value for name, value in parameters.items() if name not in _OUR_PARAMETERS}
        if "synchronous_commit" in theirs.get("options", ""):
            raise InvalidArgument("synchronous_commit is always on, because acknowledged means durable: leave it out")
        return cls(
            without_secrets(url),
            f"{head}?{urlencode({**CONNECTION_DEFAULTS, **theirs}, quote_via=quote)}",
            _schema(parameters.get("schema", SCHEMA)),
            _seconds("lease", parameters.get("lease", str(LEASE))),
            _seconds("stall_timeout", parameters.get("stall_timeout", str(STALL_TIMEOUT_S))),
        )


def without_secrets(url: str) -> str:
    """A URL without its secrets."""
    head, mark, query = url.partition("?")
    if "@" in query and "@" not in head:  # the question mark may be part of a password
        return f"{head.partition('//')[0]}//***"
    shown = {name: "***" if name in _SECRET_PARAMETERS else value for name, value in (_parameters(query) or {}).items()}
    return _SECRET.sub(r"\1:***@", head) + mark + urlencode(shown, quote_via=quote, safe="*/")


def _parameters(query: str) -> dict[str, str] | None:
    """None when it is no list of parameters, such as the rest of a password with a question mark in it."""
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        return None


def _schema(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise InvalidArgument(
            f"schema '{name}' must consist of lower-case letters, digits and underscores, and must not begin with pg_"
        )
    return name


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and seconds >= MINIMUM_SECONDS):
        raise InvalidArgument(f"{name} '{text}' must be a number of seconds, {MINIMUM_SECONDS} or more")
    return seconds


MINIMUM_SECONDS = 0.2
