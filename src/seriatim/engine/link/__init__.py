"""The link: other processes on this machine reach the owner of a store through its socket.

::

    codec.py       values as JSON and bytes         verbs.py    what can be asked, taken from the seam
    frames.py      what is said, as bytes           address.py  the socket beside the store, and who may use it
    connection.py  frames over a socket             server.py   the owner's end
    remote.py      the other end: a broker          shared.py   a broker that goes on when the owner ends
"""
