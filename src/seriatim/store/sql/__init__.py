"""The parts of a store that is kept in a SQL database, whatever its dialect.

::

    queries.py      loads the named queries and the migrations of a dialect
    session.py      what a dialect must offer: run a named query, and speak in our errors
    schema.py       brings a database to the present schema
    transaction.py  the verbs that write
    reading.py      the verbs that read
    upkeep.py       clean-up
    integrity.py    a look at everything
    sqlite/         the dialect of SQLite: queries.sql and migrations/
"""
