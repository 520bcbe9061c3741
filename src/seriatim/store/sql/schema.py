"""Migrates a database to the current schema, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.errors import DamagedStore, NewerSchema, StoreFailed
from seriatim.store.sql.queries import Migration
from seriatim.store.sql.session import Session


def migrate(session: Session, migrations: Sequence[Migration], *, new: bool) -> None:
    """Apply the missing migrations, in order. A database with a newer schema is refused."""
    if new:
        session.run("create_migrations")
    done = schema_version(session, migrations)
    for migration in migrations:
        if migration.version > done:
            try:
                session.run_script(migration.script)
            except StoreFailed as error:
                if not any(words in str(error) for words in ("already exists", "duplicate column")):
                    raise
                raise DamagedStore(
                    f"the store has what migration {migration.version} brings, and no note of it: restore a backup"
                ) from error
            session.run("note_migration", migration.version, migration.name)


def schema_version(session: Session, migrations: Sequence[Migration]) -> int:
    """The schema version of a database. A newer one than this program knows is refused."""
    found = int(session.rows("schema_version")[0][0] or 0)
    if found > migrations[-1].version:
        raise NewerSchema(
            f"the store has schema {found} and this Seriatim knows only {migrations[-1].version}: install a newer Seriatim"
        )
    return found
