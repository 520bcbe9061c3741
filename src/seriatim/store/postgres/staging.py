"""Messages staged in the database by processes that do not own the store, such as tasks of Spark on other machines.

Rules
    - An attempt stages its packs in one transaction: all of them can be seen, or none.
    - The owner appends them from table to table, and only their heads travel. Then whoever staged them forgets them.
    - Like staged files (``staged_messages.py``), they need not survive a crash: a server that crashed has lost them, the owner
      notices before it appends anything, and the batch is staged again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from seriatim.store.base import Pack
from seriatim.store.postgres.session import Pipe, PostgresSession, connect
from seriatim.store.postgres.url import PostgresUrl
from seriatim.store.staged_messages import IN_DATABASE


def stage(url: str, writer: str, batch: int, packs: Iterable[Pack]) -> str:
    """Stage the packs of one attempt; returns the name under which the owner finds them."""
    attempt = uuid.uuid4().hex
    with _transaction(url) as session:
        for place, (head, data) in enumerate(packs):
            session.rows("stage_pack", attempt, place, writer, batch, head, data)
    return IN_DATABASE + attempt


def forget_staged(url: str, writer: str, batch: int) -> None:
    """Remove what was staged for a batch of a writer, and those before it."""
    with _transaction(url) as session:
        session.run("forget_staged", writer, batch)


@contextmanager
def _transaction(url: str) -> Iterator[PostgresSession]:
    pipe = Pipe(connect(PostgresUrl.parse(url)))
    try:
        session = PostgresSession(pipe.connection)
        session.command("BEGIN")
        yield session
        session.commit(pipe)
    finally:
        pipe.close()
