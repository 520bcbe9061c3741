"""``seriatim demo``: the whole of Seriatim at work on one machine, and a check that everything adds up.

::

    devices ─▶ faulty network ─▶ topic raw ─▶ put in order ─▶ topic ordered ─▶ subscribers
                                                   └──▶ tables: ordered, ledger

    fleet.py        the devices, what they send, and the network that it has to cross
    senders.py      the client that publishes what arrives
    ordering.py     what stands in the middle: on_spark.py, or in_process.py where Spark is not installed
    subscribers.py  the clients that consume what is in order
    plan.py         what a run is given
    books.py        what went in, what came out, and whether it adds up
    folder.py       where everything is left to be looked at
    steps.py        how far it is
    job.py          all of it, at the same time
"""
