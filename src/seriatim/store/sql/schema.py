"""Brings a database to the present schema, one migration after another, in the transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.errors import NewerSchema
from seriatim.store.sql.queries import Migration
from seriatim.store.sql.session import Session


def migrate(session: Session, migrations: Sequence[Migration], *, new: bool) -> None:
    """Apply what is missing, in order; a database that is ahead of this program is refused."""
    if new:
        session.run("create_migrations")
    done = schema_version(session, migrations)
    for migration in migrations:
        if migration.version > done:
            session.run_script(migration.script)
            session.run("note_migration", migration.version, migration.name)


def schema_version(session: Session, migrations: Sequence[Migration]) -> int:
    """The version that a database has; one that is ahead of this program is refused."""
    found = int(session.rows("schema_version")[0][0] or 0)
    if found > migrations[-1].version:
        raise NewerSchema(
            f"the store has schema {found} and this Seriatim knows only {migrations[-1].version}: install a newer Seriatim"
        )
    return found
