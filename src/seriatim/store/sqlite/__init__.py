"""A store in one SQLite file: its store, session, queries and migrations, and what is done to such a file as a whole."""
