"""Publish inside a transaction of your own: a message is there if and only if that transaction commits.

The connection, or session, is one to the PostgreSQL database that holds the store, or to a SQLite file of your own that a store
knows (``PubSub.add_outbox``). The owner of the store appends what was committed to its topic, in the order of the commits
within each key.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from seriatim.core.publishing.message_limits import check_message, copy_attributes
from seriatim.core.text_checks import check_name
from seriatim.core.validation import require_kind
from seriatim.errors import FailedPrecondition, InvalidArgument

__all__ = ["publish"]

_SQLITE = "INSERT INTO seriatim_outbox (topic, key, data, attributes) VALUES (?, ?, ?, ?)"
_SQLITE_NAMED = "INSERT INTO seriatim_outbox (topic, key, data, attributes) VALUES (:topic, :key, :data, :attributes)"


def publish(
    connection: Any,
    topic: str,
    data: bytes,
    *,
    ordering_key: str | None = None,
    attributes: Mapping[str, str] | None = None,
    schema: str = "seriatim",
) -> Any:
    """Publish a message in the transaction that ``connection`` is in.

    ``connection`` is a connection of psycopg 3 or ``sqlite3``, or a session or connection of SQLAlchemy 2; with an async one,
    await the result. On PostgreSQL, others who publish the same key wait until the transaction is over; ``schema`` is that of
    the store.
    """
    check_name("topic", topic)
    attributes = None if attributes is None else copy_attributes(attributes)
    check_message(data, ordering_key, attributes)
    require_kind("schema", str, schema)
    if not (schema.isascii() and schema.isidentifier()):
        raise InvalidArgument(
            f"{schema!r} is not the schema of a store: leave schema out, or pass the one in the store's address (?schema=…)"
        )
    text = json.dumps(attributes) if attributes else None
    texts = topic + (ordering_key or "") + "".join(chain.from_iterable(attributes.items() if attributes else ()))
    if "\0" in texts or "\1" in texts:
        raise InvalidArgument("the outbox can't keep the characters 0 and 1 in texts: leave them out")
    kind: type = type(connection)
    packages = _packages(kind)
    if "sqlite3" in packages and hasattr(connection, "commit"):
        return _publish_in_file(connection, (topic, ordering_key, data, text))
    if "psycopg" in packages and hasattr(connection, "commit"):
        import psycopg

        is_async = isinstance(connection, psycopg.AsyncConnection)
        cursor: Any = psycopg.AsyncCursor(connection) if is_async else psycopg.Cursor(connection)
        if text is None:
            return cursor.execute(f'SELECT "{schema}".publish(%s, %b, %s)', (topic, data, ordering_key), prepare=True)
        call = f'SELECT "{schema}".publish(%s, %b, %s, %s::jsonb)'
        return cursor.execute(call, (topic, data, ordering_key, text), prepare=True)
    if "sqlalchemy" in packages and hasattr(connection, "execute"):
        from sqlalchemy import text as statement

        dialect = (connection.get_bind() if hasattr(connection, "get_bind") else connection).dialect.name
        on_postgresql = f'SELECT "{schema}".publish(:topic, :data, :key, CAST(:attributes AS jsonb))'
        values = {"topic": topic, "data": data, "key": ordering_key, "attributes": text}
        return connection.execute(statement(_SQLITE_NAMED if dialect == "sqlite" else on_postgresql), values)
    raise InvalidArgument(
        f"a {type(connection).__name__} can't publish through the outbox: give a connection of psycopg 3 or sqlite3, or a "
        "session or connection of SQLAlchemy 2"
    )


@lru_cache
def _packages(kind: type) -> set[str]:
    """The packages that a class and its bases come from."""
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def _publish_in_file(connection: sqlite3.Connection, values: tuple[object, ...]) -> sqlite3.Cursor:
    try:
        return connection.execute(_SQLITE, values)
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        raise FailedPrecondition(
            "this file has no outbox: call 'await pubsub.add_outbox(path)' once, with a store in another file"
        ) from error
