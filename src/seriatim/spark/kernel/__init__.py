"""Puts one micro-batch of one partition in order: Arrow in and out, numpy in between, no Spark.

``kernel.py``            rows and state in; ordered rows, ledger and the change of the state out
``intake.py``            validates and groups the rows of an Arrow table
``arrival_order.py``     sorts the rows of a task by their arrival
``batch.py``             the input and output of both paths
``slow_path_causes.py``  which keys can't take the fast path, and why
``fast_path.py``         all keys at once, on one number line; ``fast_path_result.py`` builds the decision
``slow_path.py``         key by key, with the core's resequencer
``output.py``            the tagged table
``partition_state.py``   the state of a partition: a stack of segments
``state_segment.py``     the state of keys, as bytes that are searched in place
``key_state.py``         the state of keys, or the changes of a batch, and how changes are merged
``keys.py``              keys as bytes, and their hashes
``schema_evolution.py``  held rows when the columns of a query change
``interfaces.py``        the protocols of a kernel and of its state
``arrays.py``            columns of numpy arrays that belong together
"""
