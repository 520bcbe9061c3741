"""What programs use: topics to publish to and subscriptions to consume from.

::

    pubsub.py        PubSub: where everything begins
    topic.py         Topic                            publisher.py  batches and flow control in front of a broker
    subscription.py  Subscription                     consumer.py   handlers and streams    leases.py  kept while they work
    message.py       a message in, a message out      limits.py     what a message may be
    views.py         what an operator sees
"""
