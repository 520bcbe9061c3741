"""A store in a schema of a PostgreSQL database: its store, session, ownership, queries and migrations."""
