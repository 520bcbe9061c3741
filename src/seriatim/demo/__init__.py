"""The demo: all of Seriatim at work on one machine, and a check that every message is accounted for.

::

    devices ─▶ faulty network ─▶ topic raw ─▶ resequencing ─▶ topic ordered ─▶ subscribers
                                                   └──▶ tables: ordered, ledger

    fleet.py        the devices, their readings, and the network that these cross
    plan.py         what a run needs: fleet, folder, topics, and the part that puts messages in order
    on_spark.py     that part as a pipeline on Spark
    in_process.py   that part in this process, if Spark is not installed
    subscribers.py  the clients that consume the ordered messages
    books.py        the accounts: what went in, what came out, and whether the sums agree
    folder.py       where the results are kept
    progress.py     the progress of a run
    run.py          everything at the same time
"""
