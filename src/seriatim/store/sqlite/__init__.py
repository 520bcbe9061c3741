"""A store in one SQLite file: session, SQL, migrations, inspection, restore."""
