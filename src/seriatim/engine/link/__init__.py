"""The link: other processes on this machine reach the owner of a store through its socket.

::

    codec.py       values as JSON and bytes         verbs.py    the calls, derived from the broker's signatures
    frames.py      the protocol's frames, as bytes  address.py  the socket beside the store, and who may use it
    connection.py  frames over a socket             server.py   the owner's end
    remote.py      the client's end: a broker       takeover.py a broker that continues when the owner exits
"""
