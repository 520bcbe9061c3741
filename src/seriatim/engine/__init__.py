"""The engine: joins the pure core and a store.

::

    broker.py        the seam: what programs may ask          opening.py     how they get somebody to ask
    engine.py        topics and subscriptions of one store    commit.py      group commit
    topic.py         a log, and what of it is in memory       options.py     what can be told
    subscription.py  lanes, consumers, a timer                attachment.py  a consumer at work
    consumer.py      who takes messages, and how many         loading.py     what a store holds, as lanes
    promises.py      who waits until something is durable     services.py    what the parts need of the engine
    dead_letters.py  what left its lane undelivered           operations.py  an operator's hand
    metrics.py       what is counted
    link/            the same, asked from another process
    seeking.py       seeks and snapshots                      sieve.py       what a filter rejects
    readers.py       who reads logs by ranges                 reopening.py   a store that failed is opened again
"""
