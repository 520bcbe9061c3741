"""Putting a frame in order.

``resequence.py``    its options, checked before a frame is there; ``options.py`` has those that streams of any kind share
``dispatch.py``      the choice of one of the three ways:
``sql.py``           a table, where nothing depends on the order of arrival: pure SQL
``table.py``         any other table: one sort, and the kernel
``stream.py``        a stream: a shuffle by key, a sort, and the kernel with its state
``ticks.py``         brings batches to a stream when time alone has something to decide
``preparation.py``   the columns and the order that the kernel needs
``columns.py``       whether columns can play their roles, and which rows can't be judged
``tie_breaking.py``  which of two rows came first
"""
