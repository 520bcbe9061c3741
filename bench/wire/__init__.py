"""``python -m bench.wire``: the Pub/Sub server beside the well-known emulator, and beside Redis, in one run.

Ours is durable (SQLite, every commit fsynced) and strict: one message of a key in flight, unless a row says window 16. The
emulator keeps everything in memory and is not strict. Everybody gets 200 bytes a message and 1,000 keys. The client is one
Python process on the same machine, so that it, too, takes its share of the processors.
"""
