"""resequence: a DataFrame put in order, as SQL, as a table with the kernel, or as a stream.

``resequence.py``    the options, validated before there is a frame
``dispatch.py``      chooses one of three ways:
``table_by_sql.py``  a table, where nothing depends on the order of arrival: pure SQL
``table_by_kernel.py``  any other table: one sort, and the kernel
``stream.py``        a stream: a shuffle by key, a sort, and the kernel with its state
``ticks.py``         triggers a batch when only time has something to decide
``preparation.py``   the columns and the order that the kernel needs
``columns.py``       validates columns, and finds rows that can't be judged
``tie_breaking.py``  which of two rows came first
"""
