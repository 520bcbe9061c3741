"""The same API over Kafka: ``PubSub("kafka://HOST:9092")``. Topics are Kafka's topics, subscriptions are consumer groups.

``broker.py``     the broker that programs talk to
``address.py``    where Kafka is, how to log in, and its errors as ours
``catalog.py``    topics and subscriptions: what exists, and with which options
``records.py``    messages as Kafka's records, and back
``publishing.py`` the producer
``group.py``      a subscription in this process: consumers, and what is handed to them
``partition.py``  one assigned partition: its lanes, what of it is finished, and rows of Spark pipelines that come again
``progress.py``   what of a partition is finished, as the text that is committed
``member.py``     the threads that poll, commit, and follow the state of a group
``state.py``      the records of a group's state topic: failures, pauses, what operators asked for
``backlog.py``    what a subscription has not finished, for operators

It is half as large again as the 2,000 lines that were planned, because attempts, pauses, dead letters, options and the verbs of
operators, which the engine keeps in its store for every other kind of address, have to be kept in topics and read from them
here, and because a member must be fenced from each of them when it has lost its partition.
"""
