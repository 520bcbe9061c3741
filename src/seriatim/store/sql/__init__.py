"""What both SQL stores share: reading, writing, clean-up, integrity checks.

::

    queries.py      loads the named queries and the migrations of a dialect
    session.py      what a dialect provides: named queries, and our errors
    schema.py       migrates a database to the current schema
    reader.py       a store that can be read
    writable_store.py  a store that can be written     write_operations.py  what its transactions can do
    pool.py         idle connections for readers
    cleanup.py      clean-up, in bounded pieces
    integrity.py    a check of everything
"""
