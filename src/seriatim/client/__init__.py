"""The client API: PubSub, Topic, Subscription, Message, Queue, and their blocking forms.

::

    pubsub.py        PubSub: where everything begins
    topic.py         Topic                            publisher.py        batches and flow control in front of a broker
    subscription.py  Subscription                     consumer.py         handlers, streams and pulls
    message.py       a message in, a message out      leases.py           leases that are extended while handlers run
    queue.py         Queue                            handler_calls.py    handlers that run, and who waits for them
    blocking.py      the blocking API (generated)     blocking_facade.py  how it hands calls over to an event loop
    server_broker.py, server_stream.py, channel.py    a Pub/Sub server behind the same classes: pubsub://
    stop_signals.py  SIGTERM and Ctrl-C
"""
