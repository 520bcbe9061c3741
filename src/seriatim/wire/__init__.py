"""The Google Pub/Sub API as data: names, limits, messages, and their translation.

Both ends of a connection use it, so there is no server and no client in here. The message classes are those of
google-cloud-pubsub, without its wrappers: ``types.X.pb()`` is the raw protobuf class, many times faster.
"""
