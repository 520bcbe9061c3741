"""Power loss: a disk that forgets what was not synced, and what must be true of everything that we keep on disks after
that.

A SIGKILL never loses the page cache, so no crash test that kills processes can tell whether an fsync is missing. Here a
file system in user space records what a program does to its disk, and crash images are made from the record
afterwards: for every moment, and for many choices of what a disk may have kept.

::

    trace.py        what happens to a disk, as data
    images.py       what a disk may hold after its power failed: the model of persistence
    file_system.py  the file system (FUSE) that records a trace, and how it is mounted
    syncs.py        which line of ours asked for a sync, so that each can be left out
    sites.py        all of these lines, with what objects when one is left out
    subjects.py     what is done on the disk, and what must be true of every image
    run.py          a subject is run, images are made and judged
    __main__.py     the command line: ``python -m tests.power_loss --images 20000``

The model of persistence
    - An fsync of a file makes its data and its size durable. An fsync of a folder makes its entries durable. Nothing
      else does: syncing a new file does not make its name durable.
    - Of what was written and not synced, any subset survives, whatever the order: a write may survive without one
      before it, and of one write any of its sectors (512 bytes).
    - A write changes no byte outside its range (SQLite calls this "powersafe overwrite", and assumes it).
    - A rename is old or new, also between two folders. So is every other change of an entry.

A real disk is kinder than this: journaling file systems keep the order of changes to folders, and an fsync of a new
file makes its name durable, too.
"""
