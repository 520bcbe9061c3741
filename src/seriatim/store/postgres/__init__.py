"""A store in a PostgreSQL schema: ownership with active and standby, session, SQL, migrations."""
