"""One micro-batch of one partition, put in order: Arrow tables in and out, with numpy in between and without Spark.

``kernel.py``            rows and state in; ordered rows, ledger and the change of the state out
``intake.py``            from an Arrow table to rows that can be judged
``arrival_order.py``     the rows of a task in the order of their arrival
``batch.py``             what both paths are given; ``verdict.py`` what they answer
``slow_path_causes.py``  which keys can't take the fast path, and why
``fast_path.py``         all keys at once, on one number line; ``fast_verdict.py`` puts what it found into a verdict
``slow_path.py``         key by key, with the core's resequencer
``output.py``            the tagged table
``partition.py``         what a partition knows, in columns, and the change that a batch makes to it
``key_index.py``         finds the keys of a partition
``schema_evolution.py``  rows that wait while the columns of a query change
``interfaces.py``        what Spark's side asks of a kernel and of its state
``arrays.py``            columns of numpy arrays that belong together
"""
