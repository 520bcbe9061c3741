"""Tokens, and what their holders may do: for the Pub/Sub server and for the console.

Rules
    - ``publish`` and ``subscribe`` are lists of topics (``server.access``); ``admin`` allows everything.
    - ``metrics`` is the right to read the server's Prometheus metrics. ``console`` is the role in the console and its API,
      ``viewer`` or ``operator``; ``payloads`` is the right to see there what is in messages.
    - Tokens are stored and looked up as digests, so that response times reveal nothing about a token.
    - A file of tokens that others can read is refused.
"""

from __future__ import annotations

import hashlib
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from seriatim.errors import FailedPrecondition, InvalidArgument, Unauthenticated


@dataclass(frozen=True, slots=True)
class Rights:
    """What the holder of a token may do."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    metrics: bool = False
    console: str = ""
    payloads: bool = False

    @property
    def may_view(self) -> bool:
        """Whether the admin API and console may be read."""
        return self.admin or bool(self.console)

    @property
    def may_operate(self) -> bool:
        """Whether they may be used to change something."""
        return self.admin or self.console == "operator"

    @property
    def may_see_payloads(self) -> bool:
        """Whether they show the data of messages."""
        return self.admin or self.payloads


class Access:
    """The tokens that a server knows."""

    def __init__(self, rights: Mapping[bytes, Rights]) -> None:
        self._rights = rights

    @classmethod
    def load(cls, path: Path) -> Access:
        """Read a TOML file with a table for each token."""
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise FailedPrecondition(f"others can read the tokens in '{path}': chmod 600 '{path}'")
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(f"the tokens can't be read: {error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"'{path}' is not valid TOML: {error}") from error
        rights: dict[bytes, Rights] = {}
        for name, table in tables.items():
            digest, found = _entry(path, name, table)
            if digest in rights:
                raise InvalidArgument(
                    f"'{path}': [{name}] has the same token as [{rights[digest].name}]: give each its own"
                )
            rights[digest] = found
        return cls(rights)

    @classmethod
    def generate(cls) -> tuple[Access, str]:
        """A single new token that allows everything, for a program that was given none."""
        token = secrets.token_urlsafe(32)
        return cls({_digest(token): Rights("generated", admin=True)}), token

    def authenticate(self, metadata: Any) -> Rights:
        """The rights of a caller, by its token. Raises Unauthenticated if it has no known token."""
        for key, value in metadata or ():
            scheme, _, token = str(value).partition(" ")
            if key == "authorization" and scheme.lower() == "bearer" and (found := self._rights.get(_digest(token))):
                return found
        raise Unauthenticated(
            "missing or invalid credentials: send a bearer token that this server knows (authorization: Bearer TOKEN)"
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_KNOWN = {field.name for field in fields(Rights)} - {"name"} | {"token"}


def _entry(path: Path, name: str, table: Any) -> tuple[bytes, Rights]:
    token = table.get("token") if isinstance(table, dict) else None
    if not isinstance(token, str) or not token:
        raise InvalidArgument(f"'{path}': [{name}] needs a token: token = \"…\"")
    if unknown := table.keys() - _KNOWN:
        raise InvalidArgument(
            f"'{path}': [{name}] has {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KNOWN))}"
        )
    topics = {right: table.get(right, []) for right in ("publish", "subscribe")}
    for right, listed in topics.items():
        if not isinstance(listed, list) or not all(isinstance(topic, str) for topic in listed):
            raise InvalidArgument(f"'{path}': {right} of [{name}] is a list of topics: [\"projects/PROJECT/topics/*\"]")
    flags = {right: table.get(right, False) for right in ("admin", "metrics", "payloads")}
    for right, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgument(f"'{path}': {right} of [{name}] is true or false")
    console = table.get("console", "")
    if console not in ("", "viewer", "operator"):
        raise InvalidArgument(f'\'{path}\': console of [{name}] is "viewer" or "operator"')
    rights = Rights(name, tuple(topics["publish"]), tuple(topics["subscribe"]), console=console, **flags)
    return _digest(token), rights
