"""The same API over Kafka: ``PubSub("kafka://HOST:9092")``. Topics are Kafka's topics, subscriptions are consumer groups.

``broker.py``     the broker that programs use
``address.py``    addresses, login, and translation of Kafka's errors
``catalog.py``    topics and subscriptions, and their options
``records.py``    messages as Kafka's records, and back
``publishing.py`` the producer
``group.py``      a subscription in this process: consumers, and delivery to them
``partition.py``  one assigned partition: its lanes, its progress, and repeated rows of Spark pipelines
``progress.py``   the finished offsets of a partition, as committed metadata
``member.py``     the threads that poll, commit, and follow the state of a group
``state.py``      the records of a group's state topic: failures, pauses, operators' commands
``backlog.py``    the unfinished messages of a subscription, for operators

It is half as large again as the planned 2,000 lines: attempts, pauses, dead letters, options and operators' methods,
which the engine keeps in its store for all other addresses, must be kept in topics and read from them here, and a
member must be fenced from each of them when it has lost its partition.
"""
