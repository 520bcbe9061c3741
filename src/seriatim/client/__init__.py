"""What programs use: topics to publish to and subscriptions to consume from.

::

    limits.py      what a message may be
    publisher.py   batches and flow control in front of the engine
"""
