"""The Google Pub/Sub API as data: its methods, names, limits and messages, and what they are to us.

Both ends of a connection use it, so there is no server and no client in here. The message classes are those of
google-cloud-pubsub, without its wrappers: ``types.X.pb()`` is the raw protobuf class, many times faster.
"""
