"""The engine: joins the pure core and a store.

::

    broker.py        the seam: what programs may ask          opening.py     how they get somebody to ask
    engine.py        topics and subscriptions of one store    commit.py      group commit
    topic.py         a log, and what of it is in memory       options.py     what can be told
    subscription.py  lanes, consumers, a timer                attachment.py  a consumer at work
    link/            the same, asked from another process
    seeking.py       seeks and snapshots                      sieve.py       what a filter rejects
    readers.py       who reads logs by ranges                 reopening.py   a store that failed is opened again
"""
