"""The parts of a store that is kept in a SQL database, whatever its dialect.

::

    queries.py      loads the named queries and the migrations of a dialect
    session.py      what a dialect must offer: run a named query, and speak in our errors
    schema.py       brings a database to the present schema
    reader.py       a store that can be read, and the verbs that read
    owner.py        a store that can be written        transaction.py  the verbs that write
    pool.py         connections that wait for the next reader
    upkeep.py       clean-up
    integrity.py    a look at everything
"""
